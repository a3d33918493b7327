// Times packed decode attention, query preparation to final output, and a pure read of the same bytes; checks
// the output against double precision. Records come from the reference encoder, 64 different pages dealt at
// random.
#pragma once

#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>

#include "bench/attention_gpu_timing.cuh"
#include "src/cuda/decode_attention.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/decode_reference.h"

namespace blockgtq::cuda {

inline constexpr int kTemplatePages = 64;
inline constexpr int kLayersASchedule = 64;  // as in a model

struct PackedTimes {
  float us = 0, alone_us = 0, read_us = 0;  // a layer
  float schedule_us = 0;                    // a step
  double rel_l2 = 0, rel_l2_exact = 0;
  size_t bytes = 0;  // of codes, a layer
  int layers = 0;
};

// Record r of the pool becomes template page Mix(r) % pages.
static __global__ void DealRecords(uint4* pool, size_t quads, int record_quads, const uint4* templates,
                                   uint32_t pages) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < quads;
       i += size_t{gridDim.x} * blockDim.x) {
    const size_t record = i / record_quads;
    pool[i] = templates[Mix(static_cast<uint32_t>(record)) % pages * record_quads + i % record_quads];
  }
}

class PackedBench {
 public:
  PackedBench(const Shape& s, const DeviceLimits& limits, const std::optional<AskedConfig>& asked)
      : s_(s), processors_(limits.processors), rope_(cpu::MakeRope(s_.head_dim)) {
    cpu::HeadSpec spec;
    spec.head_dim = s_.head_dim;
    spec.groups = {{4, s.head_dim / 4}, {3, s.head_dim / 2}, {2, s.head_dim / 4}};
    spec.value_width = 3;
    for (int u = 0; u < s.mean_units; ++u) spec.mean_units.push_back(u);
    plans_.assign(s.kv_heads, cpu::MakeHeadPlan(spec, 11));
    rope_.Reserve(kTemplatePages * 64);
    traits_ = Require(TraitsOf(plans_, rope_.config()), "traits");
    const HeadTable table = Require(BuildHeadTable(plans_, traits_, rope_.config()), "table");

    DecodeShape shape;
    shape.batch = s.batch, shape.kv_heads = s.kv_heads, shape.head_dim = s_.head_dim;
    shape.query_heads = s.query_heads, shape.expected_tokens = s.context;
    config_ = Require(asked ? ConfigureDecodeAs(shape, traits_, limits, asked->variant, asked->stages,
                                                asked->cluster_blocks, asked->workers)
                            : ConfigureDecode(shape, traits_, limits),
                      "configuration");

    const int64_t tiles = (s.context + 63) / 64;
    layer_bytes_ = static_cast<size_t>(s.batch) * tiles * table.layer_bytes;
    layers_ = static_cast<int>(std::max<size_t>(1, (kWorkingSet + layer_bytes_ - 1) / layer_bytes_));
    pool_ = DeviceArray<uint8_t>(layer_bytes_ * layers_);
    const cpu::Sequence sequence = cpu::MakeSequence(plans_[0], rope_, kTemplatePages * 64, 3);
    std::vector<uint8_t> templates;
    for (const std::byte* record : sequence.records) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(record);
      templates.insert(templates.end(), bytes, bytes + traits_.record_bytes);
    }
    const DeviceArray<uint8_t> device_templates(templates);
    DealRecords<<<2048, 256>>>(reinterpret_cast<uint4*>(pool_.data()), pool_.size() / 16,
                               traits_.record_bytes / 16,
                               reinterpret_cast<const uint4*>(device_templates.data()), kTemplatePages);
    Require(cudaDeviceSynchronize(), "records");

    queries_ = cpu::Normals(static_cast<size_t>(s.batch) * s.kv_heads * s.query_heads * s_.head_dim, 2.0f, 5);
    std::vector<uint16_t> halves;
    for (float& q : queries_) {
      halves.push_back(FloatToHalf(q));
      q = HalfToFloat(halves.back());
    }
    device_queries_ = DeviceArray<uint16_t>(halves);
    out_ = DeviceArray<uint16_t>(halves.size());
    coded_end_ = DeviceArray<int32_t>(std::vector<int32_t>(s.batch, static_cast<int32_t>(s.context)));
    scratch_ = DeviceArray<uint8_t>(config_.scratch_bytes);
    if (s.mean_units > 0) phases_ = std::make_unique<DevicePhases>(rope_.config(), 0, s.context);
    exchange_ = DeviceArray<uint8_t>(config_.exchange_bytes);
    exchange_.Fill(0);
    std::mt19937 random(9);
    for (int l = 0; l < layers_; ++l) {
      tables_.push_back(std::make_unique<DeviceTable>(table));
      std::vector<int32_t> order(s.batch * tiles);
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
      std::shuffle(order.begin(), order.end(), random);
      if (l == 0) block_table0_ = order;
      block_tables_.emplace_back(order);
      DecodeParams p{};
      BindDecode(config_, scratch_.data(), exchange_.data(), p);
      p.launch = static_cast<uint32_t>(l % kLayersASchedule);
      tables_.back()->Bind(p);
      if (phases_ != nullptr) p.phases = phases_->phases.data();
      p.logit_scale = static_cast<float>(1.4426950408889634 / std::sqrt(double(s_.head_dim)));
      p.coded_end = coded_end_.data();
      p.queries = device_queries_.data();
      p.out = out_.data();
      p.pool = pool_.data() + l * layer_bytes_;
      p.page_bytes = table.layer_bytes;
      p.block_table = block_tables_.back().data();
      p.max_pages = tiles;
      params_.push_back(p);
    }
  }

  PackedTimes Run() {
    PackedTimes times;
    times.layers = layers_;
    times.bytes = layer_bytes_;
    constexpr int kSchedules = 10;
    times.schedule_us = MedianMicroseconds([&](cudaStream_t stream) {
                          for (int i = 0; i < kSchedules; ++i) {
                            Require(LaunchDecodeSchedule(config_, params_[0], stream), "schedule");
                          }
                        }) /
                        kSchedules;
    // Each step's schedule is part of what is replayed; its own time is taken off.
    const int schedules = (layers_ + kLayersASchedule - 1) / kLayersASchedule;
    const auto attend = [&](bool overlap) {
      const float us = MedianMicroseconds([&](cudaStream_t stream) {
        for (const DecodeParams& p : params_) {
          if (p.launch == 0) Require(LaunchDecodeSchedule(config_, p, stream), "schedule");
          Require(LaunchDecodeAttention(config_, p, overlap && p.launch > 0, stream), "attention");
        }
      });
      return (us - static_cast<float>(schedules) * times.schedule_us) / static_cast<float>(layers_);
    };
    times.us = attend(true);
    times.alone_us = attend(false);
    const DeviceArray<uint32_t> sink(1);
    times.read_us = MedianMicroseconds([&](cudaStream_t stream) {
                      for (int l = 0; l < layers_; ++l) {
                        ReadAll<<<4 * processors_, 512, 0, stream>>>(
                            reinterpret_cast<const uint4*>(pool_.data() + l * layer_bytes_),
                            layer_bytes_ / 16, sink.data());
                      }
                    }) /
                    layers_;
    CheckLayer0(times);
    return times;
  }
  /// fp16 values.
  const std::vector<float>& queries() const { return queries_; }
  const DecodeConfig& config() const { return config_; }

 private:
  // Relative L2 errors of the first and last (sequence, head) of layer 0.
  void CheckLayer0(PackedTimes& times) {
    out_.Fill(0xff);
    Require(LaunchDecodeSchedule(config_, params_[0], nullptr), "schedule");
    Require(LaunchDecodeAttention(config_, params_[0], false, nullptr), "attention");
    Require(cudaDeviceSynchronize(), "checked run");
    const std::vector<uint16_t> out = out_.Download();
    const std::vector<uint8_t> blocks = scratch_.Download(
        0, static_cast<size_t>(s_.batch) * s_.kv_heads * config_.head_parts * config_.query_layout.bytes);
    const int64_t tiles = params_[0].max_pages;
    double error_rounded = 0, error_exact = 0, size = 0;
    for (int pair : {0, s_.batch * s_.kv_heads - 1}) {
      const int b = pair / s_.kv_heads, h = pair % s_.kv_heads;
      std::vector<std::vector<uint8_t>> bytes;
      std::vector<const std::byte*> records;
      for (int64_t t = 0; t < tiles; ++t) {
        bytes.push_back(
            pool_.Download(block_table0_[b * tiles + t] * static_cast<size_t>(params_[0].page_bytes) +
                               static_cast<size_t>(h) * traits_.record_bytes,
                           traits_.record_bytes));
        records.push_back(reinterpret_cast<const std::byte*>(bytes.back().data()));
      }
      const HeadReference reference(plans_[h], rope_);
      std::vector<std::future<std::vector<double>>> work;  // rounded then exact of each column
      for (int i = 0; i < 2 * s_.query_heads; ++i) {
        work.push_back(std::async(std::launch::async, [&, i] {
          const int column = i / 2;
          const float* query = &queries_[(static_cast<size_t>(pair) * s_.query_heads + column) * s_.head_dim];
          // The query block is of the head's part.
          const size_t part = static_cast<size_t>(pair) * config_.head_parts + column / config_.part_heads;
          const PreparedQuery prepared =
              ReadQueryBlock(plans_[h], config_.query_layout, config_.variant.few_heads,
                             column % config_.part_heads, blocks.data() + part * config_.query_layout.bytes);
          std::vector<double> result;
          (void)reference.Attend(std::vector<double>(query, query + s_.head_dim), params_[0].logit_scale,
                                 i % 2 ? nullptr : &prepared, records, 0, s_.context, result,
                                 config_.rounding_tokens());
          return result;
        }));
      }
      for (int i = 0; i < 2 * s_.query_heads; ++i) {
        const std::vector<double> result = work[i].get();
        const uint16_t* got = &out[(static_cast<size_t>(pair) * s_.query_heads + i / 2) * s_.head_dim];
        for (int d = 0; d < s_.head_dim; ++d) {
          const double e = HalfToFloat(got[d]) - result[d];
          (i % 2 ? error_exact : error_rounded) += std::isfinite(e) ? e * e : 1e30;
          if (i % 2) size += result[d] * result[d];
        }
      }
    }
    times.rel_l2 = std::sqrt(error_rounded / size);
    times.rel_l2_exact = std::sqrt(error_exact / size);
  }

  Shape s_;
  int processors_;
  RopeTable rope_;
  std::vector<HeadPlan> plans_;
  HeadTraits traits_;
  DecodeConfig config_;
  size_t layer_bytes_ = 0;
  int layers_ = 0;
  DeviceArray<uint8_t> pool_, scratch_, exchange_;
  std::vector<std::unique_ptr<DeviceTable>> tables_;
  std::unique_ptr<DevicePhases> phases_;  // with a mean
  std::vector<DeviceArray<int32_t>> block_tables_;
  std::vector<int32_t> block_table0_;
  std::vector<float> queries_;
  DeviceArray<uint16_t> device_queries_, out_;
  DeviceArray<int32_t> coded_end_;
  std::vector<DecodeParams> params_;
};

}  // namespace blockgtq::cuda
