// Decode attention on one CPU thread: packed plans with and without a K mean, the exact fp16 and fp32
// kernels, and a plain read of the same bytes. SmolLM2-135M's shape: head dim 64, 3 query heads a KV head,
// 8,192 tokens, 9 KV heads, so that the working set exceeds the second-level cache.
//
// ns_per_token: nanoseconds a (token, KV head). GB/s counts stored bytes.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "src/codec/reference_codec.h"
#include "src/core/haar.h"
#include "src/cpu/attention_codes.h"
#include "src/cpu/attention_exact.h"

namespace blockgtq::cpu {
namespace {

constexpr int kDim = 64, kTokens = 8192, kHeads = 9;
constexpr int kTiles = kTokens / kPageTokens;
const float kScale = 1.0f / std::sqrt(float{kDim});

struct PlanSpec {
  std::vector<std::pair<int, int>> groups;  // (width, units)
  int value_width;
  int mean_units;
};

HeadPlan MakePlan(const PlanSpec& spec) {
  HeadPlan plan;
  plan.head_dim = kDim;
  int unit = 0;
  for (const auto& [width, units] : spec.groups) {
    plan.groups.push_back(
        {width, width, unit, units, 16 * units, std::sqrt(16.0f * static_cast<float>(units))});
    unit += units;
  }
  plan.value = {spec.value_width, spec.value_width, 0, kDim / 16, kDim, std::sqrt(float{kDim})};
  plan.key_transform = plan.query_transform = HaarRotation(kDim, 1);
  plan.value_transform = HaarRotation(kDim, 2);
  for (int u = 0; u < spec.mean_units; ++u) plan.mean_units.push_back(kDim / 16 - spec.mean_units + u);
  if (spec.mean_units > 0) {
    plan.key_mean.assign(kDim, 0.0f);
    for (int u : plan.mean_units) std::fill_n(plan.key_mean.begin() + 16 * u, 16, 1.0f);
  }
  return plan;
}

RopeTable MakeRope() {
  RopeConfig config;
  config.head_dim = config.rotary_dims = kDim;
  RopeTable rope(config);
  rope.Reserve(kTokens + kPageTokens);
  return rope;
}

std::vector<float> Normals(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

void Report(benchmark::State& state, double bytes) {
  const double tokens = double{kTokens} * kHeads;
  state.counters["ns_per_token"] = benchmark::Counter(
      tokens * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<int64_t>(bytes * static_cast<double>(state.iterations())));
}

void Codes(benchmark::State& state, const PlanSpec& spec, int queries_count) {
  const RopeTable rope = MakeRope();
  const HeadPlan plan = MakePlan(spec);
  const PackedHead head = PackedHead::Make(plan, rope);
  // Records of one layer's heads lie together (a page). Their content repeats every 8 tiles.
  const int64_t record_bytes = head.layout.bytes;
  std::vector<std::byte> pages(record_bytes * kHeads * kTiles + 64);
  std::byte* base = pages.data() + (64 - reinterpret_cast<uintptr_t>(pages.data()) % 64) % 64;
  std::vector<std::vector<const std::byte*>> records(kHeads);
  CodesScratch scratch;
  const std::vector<float> data = Normals(kPageTokens * kDim, 3);
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int h = 0; h < kHeads; ++h) {
      std::byte* record = base + record_bytes * (tile * kHeads + h);
      if (tile < 8) {
        EncodeKeys(head, rope, data.data(), kDim, kPageTokens, 64 * tile, scratch, record);
        EncodeValues(head, data.data(), kDim, kPageTokens, 64 * tile, scratch, record);
      } else {
        std::memcpy(record, records[h][tile % 8], record_bytes);
      }
      records[h].push_back(record);
    }
  }
  const std::vector<float> query_data = Normals(queries_count * kDim, 4);
  std::vector<const float*> queries;
  for (int i = 0; i < queries_count; ++i) queries.push_back(query_data.data() + i * kDim);
  PreparedQueries prepared;
  std::vector<float> out(queries_count * kDim), lse(queries_count);
  for (auto _ : state) {
    for (int h = 0; h < kHeads; ++h) {
      PrepareQueries(head, queries, kScale, prepared);
      AttendCodes(head, prepared, 0, queries_count, records[h], 0, kTokens, {}, rope, scratch, out.data(),
                  lse.data());
    }
    benchmark::DoNotOptimize(out.data());
  }
  Report(state, double(record_bytes) * kTiles * kHeads);
}

void Exact(benchmark::State& state, ExactType type, int queries_count) {
  const ExactLayout layout = {type, kDim, kPageTokens};
  const int64_t tile_bytes = int64_t{2} * kDim * kPageTokens * (type == ExactType::kHalf ? 2 : 4);
  std::vector<std::byte> pages(tile_bytes * kHeads * kTiles + 64);
  std::byte* base = pages.data() + (64 - reinterpret_cast<uintptr_t>(pages.data()) % 64) % 64;
  std::vector<std::vector<const std::byte*>> tiles(kHeads);
  const std::vector<float> data = Normals(kPageTokens * kDim, 3);
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int h = 0; h < kHeads; ++h) {
      std::byte* at = base + tile_bytes * (tile * kHeads + h);
      for (int t = 0; t < kPageTokens; ++t) StoreExact(layout, &data[t * kDim], &data[t * kDim], t, at);
      tiles[h].push_back(at);
    }
  }
  const std::vector<float> query_data = Normals(queries_count * kDim, 4);
  std::vector<const float*> queries;
  for (int i = 0; i < queries_count; ++i) queries.push_back(query_data.data() + i * kDim);
  std::vector<float> scratch(ExactScratchFloats(kDim, queries_count));
  std::vector<float> out(queries_count * kDim), lse(queries_count);
  for (auto _ : state) {
    for (int h = 0; h < kHeads; ++h) {
      AttendExact(layout, queries, kScale, tiles[h], 0, kTokens, {}, scratch.data(), out.data(), lse.data());
    }
    benchmark::DoNotOptimize(out.data());
  }
  Report(state, double(tile_bytes) * kTiles * kHeads);
}

// The memory's limit: the same bytes, read once and summed.
void Read(benchmark::State& state, int64_t bytes_per_token) {
  const int64_t words = bytes_per_token * kTokens * kHeads / 8;
  std::vector<uint64_t> data(words, 1);
  for (auto _ : state) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < words; ++i) sum += data[i];
    benchmark::DoNotOptimize(sum);
  }
  Report(state, 8.0 * static_cast<double>(words));
}

void EncodeBench(benchmark::State& state, const PlanSpec& spec, int count) {
  const RopeTable rope = MakeRope();
  const PackedHead head = PackedHead::Make(MakePlan(spec), rope);
  std::vector<std::byte> record(head.layout.bytes);
  CodesScratch scratch;
  const std::vector<float> data = Normals(kPageTokens * kDim, 3);
  int64_t position = 0;
  for (auto _ : state) {
    EncodeKeys(head, rope, data.data(), kDim, count, position, scratch, record.data());
    EncodeValues(head, data.data(), kDim, count, position, scratch, record.data());
    position = (position + count) % kTokens;
  }
  state.counters["ns_per_token"] = benchmark::Counter(
      count * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

const PlanSpec kK3V3 = {{{4, 1}, {3, 2}, {2, 1}}, 3, 0};
const PlanSpec kK3V3Mean = {{{4, 1}, {3, 2}, {2, 1}}, 3, 4};
const PlanSpec kK3V3OneGroup = {{{3, 4}}, 3, 0};
const PlanSpec kK2V2 = {{{3, 1}, {2, 2}, {1, 1}}, 2, 0};
const PlanSpec kK4V4 = {{{5, 1}, {4, 2}, {3, 1}}, 4, 0};
const PlanSpec kK4V4Mean = {{{5, 1}, {4, 2}, {3, 1}}, 4, 4};

BENCHMARK_CAPTURE(Codes, K3V3, kK3V3, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K3V3_mean, kK3V3Mean, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K3V3_one_group, kK3V3OneGroup, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K2V2, kK2V2, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K4V4, kK4V4, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K4V4_mean, kK4V4Mean, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K3V3_mean_1_query, kK3V3Mean, 1)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Codes, K3V3_mean_48_queries, kK3V3Mean, 48)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Exact, half, ExactType::kHalf, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Exact, half_1_query, ExactType::kHalf, 1)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Exact, half_48_queries, ExactType::kHalf, 48)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Exact, float, ExactType::kFloat, 3)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Read, K3V3_bytes, 52)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Read, half_bytes, 256)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(EncodeBench, page, kK3V3Mean, 64);
BENCHMARK_CAPTURE(EncodeBench, one_token, kK3V3Mean, 1);

}  // namespace
}  // namespace blockgtq::cpu

BENCHMARK_MAIN();
