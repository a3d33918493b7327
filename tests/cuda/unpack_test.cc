// Unpacked rows against the reference decoder: head dims, widths, means, ragged ranges, sinks and window.
//
//   unpack_test [quick | time]    quick: small cases, for compute-sanitizer. time: speed only
//
#include "src/cuda/unpack.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "tests/cuda/encode_case.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

constexpr double kTolerance = 2e-3;  // relative L2 of a head's rows
constexpr int kPage = 64;

struct UnpackArrays {
  explicit UnpackArrays(const UnpackTable& t)
      : key_fragments(t.key_fragments), value_fragments(t.value_fragments), scale(t.scale) {}
  DeviceArray<uint16_t> key_fragments, value_fragments;
  DeviceArray<float> scale;
};

UnpackParams MakeParams(const EncodeModel& model, const UnpackArrays& arrays) {
  UnpackParams p;
  p.head_dim = model.table.head_dim;
  p.kv_heads = model.table.kv_heads;
  p.key_units = model.table.key_units;
  p.block_bytes = model.block_bytes;
  p.heads = model.heads.data();
  p.key_mean = model.key_mean.data();
  p.slot_rotation = model.slot_rotation.data();
  p.steps = model.steps.data();
  p.key_fragments = arrays.key_fragments.data();
  p.value_fragments = arrays.value_fragments.data();
  p.scale = arrays.scale.data();
  return p;
}

/// A sequence of `length` tokens whose codes end at coded_end, in shuffled blocks.
class Fixture {
 public:
  Fixture(const std::vector<HeadSpec>& specs, int layers, int64_t length, int64_t coded_end, int sinks)
      : model_(specs, layers, Rounding::kNearest, 11 * specs[0].head_dim),
        arrays_(BuildUnpackTable(model_.plans, model_.table)),
        coded_end_(coded_end),
        sinks_(sinks),
        exact_(specs[0].head_dim, model_.table.kv_heads, layers,
               static_cast<int>((length + 63) / 64 - coded_end / 64 + 1), 16) {
    const int dim = specs[0].head_dim, pages = static_cast<int>((coded_end + kPage - 1) / kPage);
    table_.resize(pages + 2);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(dim));
    std::vector<uint8_t> pool((pages + 2) * model_.block_bytes, 0);
    for (size_t h = 0; h < model_.plans.size(); ++h) {
      tokens_.push_back(MakeTokens(model_.plans[h], model_.rope(h), 0, length, 17 * h));
      Encode(h, pool);
      for (int64_t t = 0; t < length; ++t) {
        const uint16_t* key = &tokens_[h].keys[t * dim];
        const uint16_t* value = &tokens_[h].values[t * dim];
        const int layer = static_cast<int>(h) / kv_heads(), head = static_cast<int>(h) % kv_heads();
        if (t < sinks) exact_.PutSink(layer, head, static_cast<int>(t), key, value);
        if (t >= coded_end) exact_.PutWindow(layer, head, t, key, value);
      }
    }
    host_pool_ = std::move(pool);
    pool_ = DeviceArray<uint8_t>(host_pool_);
    device_exact_ = DeviceArray<uint16_t>(exact_.data);
    block_table_ = DeviceArray<int32_t>(table_);
  }

  void Check(const std::string& name, int layer, int64_t first, int64_t count) {
    const int dim = model_.dim();
    const size_t size = static_cast<size_t>(count) * kv_heads() * dim, guard = 64;
    DeviceArray<uint16_t> keys(size + guard), values(size + guard);
    keys.Fill(0xff);
    values.Fill(0xff);
    UnpackParams p = MakeParams(model_, arrays_);
    p.layer = layer;
    p.first = first;
    p.count = count;
    p.coded_end = coded_end_;
    p.sinks = sinks_;
    p.block_table = block_table_.data();
    p.pool = pool_.data();
    p.exact = reinterpret_cast<const uint8_t*>(device_exact_.data());
    p.window_offset = exact_.WindowOffset(layer);
    p.sink_offset = exact_.SinkOffset(layer);
    p.window_tiles = exact_.window_tiles;
    p.sink_tile_tokens = exact_.sink_tokens;
    p.keys = keys.data();
    p.values = values.data();
    Require(LaunchUnpack(p, false, nullptr), "launch");
    Require(cudaDeviceSynchronize(), "unpack");
    const std::vector<uint16_t> k = keys.Download(), v = values.Download();
    double worst = 0;
    bool exact_same = true;
    for (int head = 0; head < kv_heads(); ++head) {
      const size_t h = static_cast<size_t>(layer) * kv_heads() + head;
      double error[2] = {}, square[2] = {};
      for (int64_t t = first; t < first + count; ++t) {
        const size_t at = (static_cast<size_t>(t - first) * kv_heads() + head) * dim;
        if (t < sinks_ || t >= coded_end_) {
          exact_same &= std::equal(&k[at], &k[at] + dim, &tokens_[h].keys[t * dim]) &&
                        std::equal(&v[at], &v[at] + dim, &tokens_[h].values[t * dim]);
          continue;
        }
        std::vector<float> key(dim), value(dim);
        const auto record = model_.Record(host_pool_, table_[t / kPage], h);
        reference::DecodeKey(model_.plans[h], model_.layouts[h], model_.rope(h), record, t, key.data());
        reference::DecodeValue(model_.plans[h], model_.layouts[h], record, static_cast<int>(t % kPage),
                               value.data());
        for (int d = 0; d < dim; ++d) {
          const double dk = HalfToFloat(k[at + d]) - key[d], dv = HalfToFloat(v[at + d]) - value[d];
          error[0] += std::isfinite(dk) ? dk * dk : 1e30;
          error[1] += std::isfinite(dv) ? dv * dv : 1e30;
          square[0] += double{key[d]} * key[d];
          square[1] += double{value[d]} * value[d];
        }
      }
      for (int i = 0; i < 2; ++i) worst = std::max(worst, std::sqrt(error[i] / std::max(square[i], 1e-30)));
    }
    char figure[40];
    std::snprintf(figure, sizeof figure, ": relative L2 %.2e", worst);
    std::printf("%s%s\n", name.c_str(), figure);
    cuda::Check(worst <= kTolerance, name + figure);
    cuda::Check(exact_same, name + ": exact tokens are copied");
    const auto untouched = [&](const std::vector<uint16_t>& rows) {
      return std::all_of(rows.begin() + size, rows.end(), [](uint16_t x) { return x == 0xffff; });
    };
    cuda::Check(untouched(k) && untouched(v), name + ": nothing behind the rows is written");
  }

 private:
  int kv_heads() const { return model_.table.kv_heads; }
  void Encode(size_t h, std::vector<uint8_t>& pool) const {
    const int dim = model_.dim();
    for (int64_t t = 0; t < coded_end_; t += kPage) {
      const size_t count = std::min<int64_t>(kPage, coded_end_ - t) * dim;
      const auto record = model_.Record(pool, table_[t / kPage], h);
      Require(reference::EncodeKeys(model_.plans[h], model_.layouts[h], model_.rope(h),
                                    Widen(&tokens_[h].keys[t * dim], count), t, record),
              "reference");
      Require(reference::EncodeValues(model_.plans[h], model_.layouts[h],
                                      Widen(&tokens_[h].values[t * dim], count), t, record),
              "reference");
    }
  }

  EncodeModel model_;
  UnpackArrays arrays_;
  int64_t coded_end_;
  int sinks_;
  ExactTiles exact_;
  std::vector<int32_t> table_;
  std::vector<HeadTokens> tokens_;
  std::vector<uint8_t> host_pool_;
  DeviceArray<uint8_t> pool_;
  DeviceArray<uint16_t> device_exact_;
  DeviceArray<int32_t> block_table_;
};

void TestErrors() {
  UnpackParams p;
  p.kv_heads = 1;
  p.head_dim = 64;
  cuda::Check(LaunchUnpack(p, false, nullptr).code() == ErrorCode::kInvalidArgument,
              "refuses an empty range");
  p.count = 10;
  p.coded_end = 5;
  cuda::Check(LaunchUnpack(p, false, nullptr).code() == ErrorCode::kInvalidArgument,
              "refuses exact tokens without tiles");
  p.coded_end = 10;
  p.head_dim = 96;
  cuda::Check(LaunchUnpack(p, false, nullptr).code() == ErrorCode::kUnsupported, "refuses head dim 96");
}

/// `tokens` random tokens of 8 heads of dim 128, several layers in turn.
void Time(const std::string& name, const HeadSpec& spec, int64_t tokens) {
  const int kv_heads = 8;
  const EncodeModel model(std::vector<HeadSpec>(kv_heads, spec), 1, Rounding::kNearest, 1);
  const UnpackArrays arrays(BuildUnpackTable(model.plans, model.table));
  const int64_t pages = tokens / kPage;
  const double record_bytes = double(pages) * model.block_bytes;
  const double row_bytes = 4.0 * tokens * kv_heads * spec.head_dim;
  const int sets = static_cast<int>(400e6 / (record_bytes + row_bytes)) + 2;
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(model.block_bytes * pages);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  DeviceArray<uint8_t> pool(bytes.size() * sets);
  for (int s = 0; s < sets; ++s) {
    Require(cudaMemcpy(pool.data() + s * bytes.size(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
            "upload");
  }
  DeviceArray<uint16_t> rows(static_cast<size_t>(row_bytes / 2) * sets);
  std::vector<int32_t> table(pages * sets);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const DeviceArray<int32_t> block_table(table);
  UnpackParams p = MakeParams(model, arrays);
  p.count = p.coded_end = tokens;
  p.pool = pool.data();
  const double us = MedianMicroseconds(sets, [&](int set, cudaStream_t stream) {
    p.block_table = block_table.data() + set * pages;
    p.keys = rows.data() + set * static_cast<size_t>(row_bytes / 2);
    p.values = p.keys + static_cast<size_t>(row_bytes / 4);
    Require(LaunchUnpack(p, false, stream), "launch");
  });
  std::printf("%-24s %6lld tokens x 8 heads: %7.1f us, %7.1f GB/s of codes and rows\n", name.c_str(),
              static_cast<long long>(tokens), us, (record_bytes + row_bytes) / us / 1e3);
}

void TimeAll() {
  const HeadSpec mixed = {128, {{4, 32}, {3, 64}, {2, 32}}, 3, {}};
  Time("K{4,3,2} V3", mixed, 32768);
  Time("K{4,3,2} V3", mixed, 131072);
  Time("K{4,3,2} V3", mixed, 4096);
  Time("with the whole mean", {128, {{4, 32}, {3, 64}, {2, 32}}, 3, {0, 1, 2, 3, 4, 5, 6, 7}}, 32768);
  Time("K3 V3", {128, {{3, 128}}, 3, {}}, 32768);
  Time("K3 V3 D 64", {64, {{3, 64}}, 3, {}}, 65536);
}

void RunAll(const DeviceLimits&, bool quick) {
  TestErrors();
  Fixture(ManyUnitSpecs(), 1, 2 * kPage + 30, kPage + 23, 4).Check("D 256, 23 units", 0, 0, 2 * kPage + 30);
  for (int dim : {64, 128, 256}) {
    const std::string name = "D " + std::to_string(dim);
    Fixture f(MixedSpecs(dim), 2, 3 * kPage + 30, 2 * kPage + 23, 4);
    f.Check(name + ", all tokens", 1, 0, 3 * kPage + 30);
    f.Check(name + ", tokens 70..100", 0, 70, 30);
    if (quick) continue;
    f.Check(name + ", tokens 2..152", 1, 2, 150);
    f.Check(name + ", one token", 0, 127, 1);
    Fixture whole(MixedSpecs(dim), 1, 40 * kPage, 40 * kPage, 0);
    whole.Check(name + ", 2,560 coded tokens", 0, 0, 40 * kPage);
    whole.Check(name + ", from 100 on", 0, 100, 40 * kPage - 101);
  }
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "time") == 0) {
    blockgtq::cuda::TimeAll();
    return 0;
  }
  return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::RunAll);
}
