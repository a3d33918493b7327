// Times packed decode attention on the GPU, query preparation to final output, and a pure read of the same
// bytes; checks what it timed against double precision. bench/attention_gpu.py adds cuDNN and writes the
// results.
//
//   attention_gpu_bench ROWS.json
//
// Every time is a layer's: the median of replays of a CUDA graph over so many layers (own records, block
// table and matrices each) that the set exceeds the L2 cache several times. The schedule runs once a step, so
// it is timed apart. Records come from the reference encoder, 64 different pages dealt at random.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>

#include "src/cuda/decode_attention.h"
#include "tests/cpu/packed_head_model.h"
#include "tests/cuda/decode_reference.h"
#include "tests/cuda/device_array.h"

namespace blockgtq::cuda {
namespace {

constexpr size_t kWorkingSet = size_t{400} << 20;
constexpr int kReplays = 15, kWarmups = 3, kTemplatePages = 64, kHeadDim = 128;
constexpr double kRoundedTolerance = 1e-3, kExactTolerance = 3e-2;

struct Shape {
  int batch, kv_heads, query_heads;  // query heads a KV head
  int64_t context;
  int mean_units = 0;
};

__device__ uint32_t Mix(uint32_t x) {
  x = (x ^ x >> 16) * 2246822519u;
  x = (x ^ x >> 13) * 3266489917u;
  return x ^ x >> 16;
}

// Record r of the pool becomes template page Mix(r) % pages.
__global__ void DealRecords(uint4* pool, size_t quads, int record_quads, const uint4* templates,
                            uint32_t pages) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < quads;
       i += size_t{gridDim.x} * blockDim.x) {
    const size_t record = i / record_quads;
    pool[i] = templates[Mix(static_cast<uint32_t>(record)) % pages * record_quads + i % record_quads];
  }
}

__global__ void __launch_bounds__(512) ReadAll(const uint4* data, size_t count, uint32_t* sink) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  uint32_t x = 0;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = data[i], b = data[i + stride], c = data[i + 2 * stride], d = data[i + 3 * stride];
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += stride) x ^= data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
  if (x == 0x12345) *sink = x;  // keeps the loads
}

float MedianMicroseconds(const std::function<void(cudaStream_t)>& work) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaEvent_t before, after;
  Require(cudaStreamCreate(&stream), "stream");
  work(stream);
  Require(cudaStreamSynchronize(stream), "first run");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  work(stream);
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&executable, graph, 0), "graph");
  Require(cudaEventCreate(&before), "event");
  Require(cudaEventCreate(&after), "event");
  std::vector<float> times;
  for (int i = 0; i < kWarmups + kReplays; ++i) {
    Require(cudaEventRecord(before, stream), "event");
    Require(cudaGraphLaunch(executable, stream), "replay");
    Require(cudaEventRecord(after, stream), "event");
    Require(cudaEventSynchronize(after), "replay");
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, before, after), "event");
    if (i >= kWarmups) times.push_back(ms * 1e3f);
  }
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaEventDestroy(before);
  (void)cudaEventDestroy(after);
  (void)cudaStreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class Bench {
 public:
  Bench(const Shape& s, const DeviceLimits& limits) : s_(s), rope_(cpu::MakeRope(kHeadDim)) {
    cpu::HeadSpec spec;
    spec.head_dim = kHeadDim;
    spec.groups = {{4, 32}, {3, 64}, {2, 32}};
    spec.value_width = 3;
    for (int u = 0; u < s.mean_units; ++u) spec.mean_units.push_back(u);
    plans_.assign(s.kv_heads, cpu::MakeHeadPlan(spec, 11));
    rope_.Reserve(kTemplatePages * 64);
    traits_ = Require(TraitsOf(plans_), "traits");
    const HeadTable table = Require(BuildHeadTable(plans_, traits_, rope_.config()), "table");

    DecodeShape shape;
    shape.batch = s.batch, shape.kv_heads = s.kv_heads, shape.head_dim = kHeadDim;
    shape.query_heads = s.query_heads, shape.expected_tokens = s.context;
    config_ = Require(ConfigureDecode(shape, traits_, limits), "configuration");

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

    queries_ = cpu::Normals(static_cast<size_t>(s.batch) * s.kv_heads * s.query_heads * kHeadDim, 2.0f, 5);
    std::vector<uint16_t> halves;
    for (float& q : queries_) {
      halves.push_back(FloatToHalf(q));
      q = HalfToFloat(halves.back());
    }
    device_queries_ = DeviceArray<uint16_t>(halves);
    out_ = DeviceArray<uint16_t>(halves.size());
    coded_end_ = DeviceArray<int32_t>(std::vector<int32_t>(s.batch, static_cast<int32_t>(s.context)));
    scratch_ = DeviceArray<uint8_t>(config_.scratch_bytes);
    std::mt19937 random(9);
    for (int l = 0; l < layers_; ++l) {
      tables_.push_back(std::make_unique<DeviceTable>(table));
      std::vector<int32_t> order(s.batch * tiles);
      for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
      std::shuffle(order.begin(), order.end(), random);
      if (l == 0) block_table0_ = order;
      block_tables_.emplace_back(order);
      DecodeParams p{};
      BindDecode(config_, scratch_.data(), p);
      tables_.back()->Bind(p);
      p.logit_scale = static_cast<float>(1.4426950408889634 / std::sqrt(double(kHeadDim)));
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

  // One JSON row; false when the timed output is wrong.
  bool Run(std::string& row) {
    Require(LaunchDecodeSchedule(config_, params_[0], nullptr), "schedule");
    const auto attend = [&](bool overlap) {
      return MedianMicroseconds([&](cudaStream_t stream) {
               for (const DecodeParams& p : params_) {
                 Require(LaunchDecodeAttention(config_, p, overlap && &p != params_.data(), stream),
                         "attention");
               }
             }) /
             layers_;
    };
    const float us = attend(false), again = attend(false), overlapped = attend(true);
    const float schedule = MedianMicroseconds([&](cudaStream_t stream) {
                             for (int i = 0; i < 10; ++i) {
                               Require(LaunchDecodeSchedule(config_, params_[0], stream), "schedule");
                             }
                           }) /
                           10;
    DeviceArray<uint32_t> sink(1);
    const float read = MedianMicroseconds([&](cudaStream_t stream) {
                         for (int l = 0; l < layers_; ++l) {
                           ReadAll<<<132 * 4, 512, 0, stream>>>(
                               reinterpret_cast<const uint4*>(pool_.data() + l * layer_bytes_),
                               layer_bytes_ / 16, sink.data());
                         }
                       }) /
                       layers_;
    const auto [rounded, exact] = CheckLayer0();
    char text[700];
    std::snprintf(
        text, sizeof text,
        "{\"batch\": %d, \"q_heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"context\": %lld, "
        "\"k_bits\": 3, \"v_bits\": 3, \"mean_units\": %d, \"us\": %.2f, \"us_again\": %.2f, "
        "\"overlapped_us\": %.2f, "
        "\"read_us\": %.2f, \"schedule_us\": %.2f, \"bytes\": %zu, \"rel_l2\": %.3e, "
        "\"rel_l2_exact\": %.3e, \"layers\": %d, \"warps\": %d, \"stages\": %d, \"warp_workers\": %s}",
        s_.batch, s_.kv_heads * s_.query_heads, s_.kv_heads, kHeadDim, static_cast<long long>(s_.context),
        s_.mean_units, us, again, overlapped, read, schedule, layer_bytes_, rounded, exact, layers_,
        config_.variant.warps, config_.stages, config_.variant.warp_workers ? "true" : "false");
    row = text;
    return rounded <= kRoundedTolerance && exact <= kExactTolerance;
  }

 private:
  // Relative L2 errors of the first and last (sequence, head) of layer 0.
  std::pair<double, double> CheckLayer0() {
    out_.Fill(0xff);
    Require(LaunchDecodeAttention(config_, params_[0], false, nullptr), "attention");
    Require(cudaDeviceSynchronize(), "checked run");
    const std::vector<uint16_t> out = out_.Download();
    const std::vector<uint8_t> blocks =
        scratch_.Download(0, static_cast<size_t>(s_.batch) * s_.kv_heads * config_.query_layout.bytes);
    const int64_t tiles = params_[0].max_pages;
    double error_rounded = 0, error_exact = 0, size = 0;
    for (int pair : {0, s_.batch * s_.kv_heads - 1}) {
      const int b = pair / s_.kv_heads, h = pair % s_.kv_heads;
      std::vector<uint8_t> bytes;
      std::vector<const std::byte*> records;
      const std::vector<uint8_t> pool = pool_.Download(0, layer_bytes_);
      for (int64_t t = 0; t < tiles; ++t) {
        records.push_back(reinterpret_cast<const std::byte*>(
            &pool[block_table0_[b * tiles + t] * static_cast<size_t>(params_[0].page_bytes) +
                  static_cast<size_t>(h) * traits_.record_bytes]));
      }
      const HeadReference reference(plans_[h], rope_);
      std::vector<std::future<std::vector<double>>> work;  // rounded then exact of each column
      for (int i = 0; i < 2 * s_.query_heads; ++i) {
        work.push_back(std::async(std::launch::async, [&, i] {
          const int column = i / 2;
          const float* query = &queries_[(static_cast<size_t>(pair) * s_.query_heads + column) * kHeadDim];
          const PreparedQuery prepared =
              ReadQueryBlock(plans_[h], config_.query_layout, config_.variant.few_heads, column,
                             blocks.data() + static_cast<size_t>(pair) * config_.query_layout.bytes);
          std::vector<double> result;
          (void)reference.Attend(std::vector<double>(query, query + kHeadDim), params_[0].logit_scale,
                                 i % 2 ? nullptr : &prepared, records, 0, s_.context, result);
          return result;
        }));
      }
      for (int i = 0; i < 2 * s_.query_heads; ++i) {
        const std::vector<double> result = work[i].get();
        const uint16_t* got = &out[(static_cast<size_t>(pair) * s_.query_heads + i / 2) * kHeadDim];
        for (int d = 0; d < kHeadDim; ++d) {
          const double e = HalfToFloat(got[d]) - result[d];
          (i % 2 ? error_exact : error_rounded) += std::isfinite(e) ? e * e : 1e30;
          if (i % 2) size += result[d] * result[d];
        }
      }
    }
    return {std::sqrt(error_rounded / size), std::sqrt(error_exact / size)};
  }

  Shape s_;
  RopeTable rope_;
  std::vector<HeadPlan> plans_;
  HeadTraits traits_;
  DecodeConfig config_;
  size_t layer_bytes_ = 0;
  int layers_ = 0;
  DeviceArray<uint8_t> pool_, scratch_;
  std::vector<std::unique_ptr<DeviceTable>> tables_;
  std::vector<DeviceArray<int32_t>> block_tables_;
  std::vector<int32_t> block_table0_;
  std::vector<float> queries_;
  DeviceArray<uint16_t> device_queries_, out_;
  DeviceArray<int32_t> coded_end_;
  std::vector<DecodeParams> params_;
};

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::printf("usage: attention_gpu_bench ROWS.json\n");
    return 2;
  }
  const Result<DeviceLimits> limits = ReadDeviceLimits(0);
  if (!limits.ok()) {
    std::printf("SKIPPED: %s\n", limits.status().message().c_str());
    return 77;
  }
  std::vector<Shape> shapes = {
      {8, 8, 4, 131072}, {8, 8, 4, 131072, 8}, {8, 8, 4, 16384},  {8, 8, 4, 2048},      {64, 8, 4, 4096},
      {1, 8, 4, 131072}, {1, 8, 4, 131072, 8}, {1, 2, 8, 131072}, {1, 2, 8, 131072, 8}, {1, 2, 8, 524288}};
  for (int64_t context = 1024; context <= 32768; context *= 2) {
    shapes.push_back({1, 2, 8, context});
    shapes.push_back({1, 8, 4, context});
  }
  FILE* file = std::fopen(argv[1], "w");
  if (!file) {
    std::printf("cannot write %s\n", argv[1]);
    return 2;
  }
  std::fprintf(file, "[\n");
  int wrong = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    std::string row;
    if (!Bench(shapes[i], *limits).Run(row)) {
      ++wrong;
      std::printf("WRONG OUTPUT: ");
    }
    std::printf("%s\n", row.c_str());
    std::fflush(stdout);
    std::fprintf(file, "%s%s\n", row.c_str(), i + 1 < shapes.size() ? "," : "");
  }
  std::fprintf(file, "]\n");
  std::fclose(file);
  return wrong ? 1 : 0;
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::Main(argc, argv); }
