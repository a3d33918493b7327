// Attention for other backends: what it makes of rows in host memory is, to the bit, what the CPU backend
// makes of its own.
#include "src/cpu/host_attention.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "src/cpu/cpu_backend.h"
#include "tests/cpu/packed_head_model.h"

namespace blockgtq::cpu {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 32;
constexpr int64_t kRows = 150;

std::unique_ptr<KvCache> MakeCache() {
  auto heads = std::make_shared<SimulatedHeads>();
  *heads = {"test", 1, kKvHeads, kDim, {}};
  for (int h = 0; h < kKvHeads; ++h) {
    heads->heads.push_back(
        SimulatePlannedHead(MakeHeadPlan({kDim, {{3, 32}}, 3, {0}}, static_cast<uint64_t>(7 + h)),
                            std::make_shared<RopeTable>(MakeRope(kDim))));
  }
  CacheOptions options;
  options.kind = CacheKind::kSimulated;
  options.sinks = 2;
  options.recent = 64;
  options.max_tokens = 256;
  options.simulated = heads;
  return KvCache::Create({1, kKvHeads, kDim}, options, nullptr).value();
}

/// Weights whose row t is token t's vector.
std::unique_ptr<Weight> Table(Backend& backend, const std::vector<float>& rows) {
  const int64_t columns = static_cast<int64_t>(rows.size()) / kRows;
  return backend
      .LoadMatrix({TensorType::kF32, reinterpret_cast<const std::byte*>(rows.data()), kRows, columns}, "rows")
      .value();
}

TEST(HostAttention, IsTheCpuBackendsToTheBit) {
  std::vector<float> queries = Normals(kRows * kHeads * kDim, 1.0f, 1),
                     keys = Normals(kRows * kKvHeads * kDim, 1.0f, 2),
                     values = Normals(kRows * kKvHeads * kDim, 1.0f, 3);
  const auto backend = CreateCpuBackend({"cpu", 2}).value();
  const auto cache = MakeCache(), of_host = MakeCache();
  const LayerRopes ropes{{MakeRope(kDim)}};
  const auto binding = backend->BindCache(*cache, ropes).value();
  const auto cores = CreateHostAttention(2).value();
  const auto attention = cores->Bind(*of_host, ropes);
  const auto q_table = Table(*backend, queries), k_table = Table(*backend, keys),
             v_table = Table(*backend, values);
  for (KvCache* each : {cache.get(), of_host.get()}) ASSERT_TRUE(each->AddSequence().ok());
  int64_t first = 0;
  for (const int64_t count : {100, 1, 49}) {
    const BatchSlice slice{0, 0, count, first, count == 49};
    std::vector<int32_t> tokens;
    for (int64_t t = first; t < first + count; ++t) tokens.push_back(static_cast<int32_t>(t));
    const auto q = backend->MakeActivations(count, kHeads * kDim),
               k = backend->MakeActivations(count, kKvHeads * kDim),
               v = backend->MakeActivations(count, kKvHeads * kDim),
               out = backend->MakeActivations(count, kHeads * kDim);
    backend->Embed(*q_table, tokens, *q);
    backend->Embed(*k_table, tokens, *k);
    backend->Embed(*v_table, tokens, *v);
    AttentionCall call;
    call.cache = binding.get();
    call.heads = kHeads;
    call.scale = 0.2f;
    call.queries = q.get();
    call.keys = k.get();
    call.values = v.get();
    call.out = out.get();
    call.slices = {&slice, 1};
    for (KvCache* each : {cache.get(), of_host.get()}) ASSERT_TRUE(each->Reserve(0, count).ok());
    ASSERT_TRUE(backend->Attention(call).ok());
    std::vector<float> expected(static_cast<size_t>(count * kHeads * kDim)), got(expected.size() + 1);
    ASSERT_TRUE(backend->ReadRows(*out, count, expected.data()).ok());

    AttentionCall elsewhere = call;
    elsewhere.cache = nullptr;
    elsewhere.queries = elsewhere.keys = elsewhere.values = nullptr;
    elsewhere.out = nullptr;
    const HostRows rows{count, &queries[static_cast<size_t>(first * kHeads * kDim)],
                        &keys[static_cast<size_t>(first * kKvHeads * kDim)],
                        &values[static_cast<size_t>(first * kKvHeads * kDim)], got.data() + 1};
    ASSERT_TRUE(attention->Run(elsewhere, rows).ok());
    got.erase(got.begin());
    EXPECT_EQ(got, expected) << count << " rows from " << first;
    for (KvCache* each : {cache.get(), of_host.get()}) each->Commit(0, count, CodedEndAfter(*each, slice));
    first += count;
  }
  EXPECT_EQ(of_host->state(0).coded_end, 64);
}

TEST(HostAttention, RowsThatAreNotFiniteAreNamed) {
  const auto cache = MakeCache();
  const auto cores = CreateHostAttention(1).value();
  const auto attention = cores->Bind(*cache, {{MakeRope(kDim)}});
  ASSERT_TRUE(cache->AddSequence().ok());
  ASSERT_TRUE(cache->Reserve(0, 3).ok());
  std::vector<float> queries(3 * kHeads * kDim, 1.0f), keys(3 * kKvHeads * kDim, 1.0f), values = keys,
                                                                                        out = queries;
  values[2 * kKvHeads * kDim + 5] = std::numeric_limits<float>::quiet_NaN();
  const BatchSlice slice{0, 0, 3, 0, true};
  AttentionCall call;
  call.heads = kHeads;
  call.slices = {&slice, 1};
  const Status status = attention->Run(call, {3, queries.data(), keys.data(), values.data(), out.data()});
  EXPECT_EQ(status.code(), ErrorCode::kNonFinite);
  EXPECT_NE(status.message().find("position 2"), std::string::npos) << status.message();
}

TEST(HostAttention, ThreadsOutOfRangeAreNamed) {
  EXPECT_EQ(CreateHostAttention(-1).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(CreateHostAttention(100000).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockgtq::cpu
