// Attention over latents on the GPU, a layer of DeepSeek-V2's dims: decoding over packed (K3V3) and fp16
// caches by sequences, heads and tokens, a prompt's chunk, and the encoder; each beside the bytes of the
// cache that it reads.
//
//   latent_gpu_bench [--out FILE] [--commit ID]
//
// Caches rotate through more memory than the L2 cache has; every figure is the median of graph replays. Exit
// status 77: there is no device.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/gpu_results_file.h"
#include "src/cuda/decode_attention.h"
#include "src/cuda/launch.cuh"
#include "tests/cuda/encode_case.h"
#include "tests/cuda/latent_case.h"

namespace blockgtq::cuda {
namespace {

constexpr int kRope = 64, kLatent = 512, kDim = kRope + kLatent, kPage = 64;
constexpr int64_t kRotatingBytes = int64_t{400} << 20;

/// Finite halves, and codes and norms like any others.
__global__ void FillKernel(uint16_t* out, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count; i += int64_t{256} * gridDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    out[i] = static_cast<uint16_t>((x >> 16 & 0x83ffu) | 0x3800u);
  }
}

DeviceArray<uint8_t> Filled(int64_t bytes) {
  DeviceArray<uint8_t> array(static_cast<size_t>(bytes));
  Require(Launch("filling", FillKernel, 1024, 256, 0, false, nullptr,
                 reinterpret_cast<uint16_t*>(array.data()), bytes / 2),
          "fill");
  Require(cudaDeviceSynchronize(), "fill");
  return array;
}

struct Shape {
  int sequences, heads, rows;  // rows: of each sequence
  int64_t tokens;
  bool packed;
};

/// Arrays of `rows` rows; the cache is Bench's.
class Layer {
 public:
  Layer(const DeviceLatents& latents, const Shape& s, int processors)
      : shape_(s),
        sets_(1),
        page_bytes_(s.packed ? latents.table.record_bytes : 2 * kPage * kDim),
        pages_((s.tokens + kPage - 1) / kPage) {
    const int64_t cache_bytes = s.sequences * pages_ * page_bytes_;
    sets_ = static_cast<int>(std::max<int64_t>(1, kRotatingBytes / cache_bytes));
    pool_ = Filled(sets_ * cache_bytes);
    std::vector<int32_t> tables, coded, lengths;
    for (int64_t page = 0; page < sets_ * s.sequences * pages_; ++page)
      tables.push_back(static_cast<int32_t>(page));
    for (int i = 0; i < s.sequences * s.rows; ++i) {
      const int64_t length = s.tokens - s.rows + 1 + i % s.rows;
      coded.push_back(static_cast<int32_t>(s.packed ? (length - 64) / kPage * kPage : 0));
      lengths.push_back(static_cast<int32_t>(length));
    }
    tables_ = DeviceArray<int32_t>(tables);
    coded_ = DeviceArray<int32_t>(coded);
    lengths_ = DeviceArray<int32_t>(lengths);
    const int64_t vectors = int64_t{s.sequences} * s.rows * s.heads;
    queries_ = Filled(2 * vectors * kDim);
    scales_ = DeviceArray<float>(std::vector<float>(static_cast<size_t>(vectors), 1e-3f));
    window_ = Filled(2 * (3 * kPage + 16) * kDim);
    exact_ = DeviceArray<const uint8_t*>(
        std::vector<const uint8_t*>(static_cast<size_t>(s.sequences) * s.rows, window_.data()));
    out_ = DeviceArray<uint16_t>(static_cast<size_t>(vectors) * kDim);
    latents.Bind(params_);
    params_.rows = s.sequences * s.rows;
    params_.heads = s.heads;
    params_.group_rows = s.rows;
    params_.logit_scale = 0.1f;
    params_.queries = reinterpret_cast<const uint16_t*>(queries_.data());
    params_.query_scale = scales_.data();
    params_.coded_end = coded_.data();
    params_.length = lengths_.data();
    params_.sinks = s.packed ? 4 : 0;
    params_.table_stride = pages_;
    params_.pool = pool_.data();
    params_.block_bytes = page_bytes_;
    params_.exact_kind = s.packed ? LatentExact::kTiles : LatentExact::kPages;
    params_.exact = exact_.data();
    params_.window_tiles = 3;
    params_.sink_offset = int64_t{2} * 3 * kPage * kDim;
    params_.out = out_.data();
    params_.code_splits = s.packed ? 1 : 0;
    params_.exact_splits = 1;
    const int codes = s.packed ? LatentSplits(params_, processors, pages_) : 0;
    params_.exact_splits = LatentSplits(params_, processors, s.packed ? 4 : pages_);
    params_.code_splits = codes;
    scratch_ = DeviceArray<uint8_t>(static_cast<size_t>(LatentScratchBytes(params_)));
    BindLatentScratch(scratch_.data(), params_);
  }

  template <typename F>
  double Time(F launch) {
    return MedianMicroseconds(sets_, [&](int set, cudaStream_t stream) {
      LatentParams p = params_;
      p.block_table = tables_.data() + set * shape_.sequences * pages_;
      Require(launch(p, stream), "launch");
    });
  }
  int64_t cache_bytes() const { return shape_.sequences * pages_ * page_bytes_; }
  int parts() const { return params_.code_splits + params_.exact_splits; }

 private:
  Shape shape_;
  int sets_;
  int64_t page_bytes_, pages_;
  LatentParams params_;
  DeviceArray<uint8_t> pool_, queries_, window_, scratch_;
  DeviceArray<int32_t> tables_, coded_, lengths_;
  DeviceArray<float> scales_;
  DeviceArray<const uint8_t*> exact_;
  DeviceArray<uint16_t> out_;
};

/// Prints a measurement, and gives it as a row of the results file.
std::string TimeShape(const DeviceLatents& latents, const Shape& s, int processors) {
  Layer layer(latents, s, processors);
  const double all =
      layer.Time([](const LatentParams& p, cudaStream_t stream) { return LaunchLatents(p, stream); });
  const double attention =
      layer.Time([](const LatentParams& p, cudaStream_t stream) { return LaunchLatentAttention(p, stream); });
  const double merge =
      layer.Time([](const LatentParams& p, cudaStream_t stream) { return LaunchLatentMerge(p, stream); });
  std::printf(
      "%-6s %3d sequences, %4d rows, %3d heads, %7lld tokens: %9.1f us (attention %9.1f in %2d parts, merge "
      "%7.1f), "
      "%7.1f GB/s of the cache\n",
      s.packed ? "packed" : "fp16", s.sequences, s.rows, s.heads, static_cast<long long>(s.tokens), all,
      attention, layer.parts(), merge, static_cast<double>(layer.cache_bytes()) / all / 1e3);
  char row[300];
  std::snprintf(row, sizeof row,
                "{\"cache\": \"%s\", \"sequences\": %d, \"rows\": %d, \"heads\": %d, \"context\": %lld, "
                "\"us\": %.1f, \"attention_us\": %.1f, \"parts\": %d, \"merge_us\": %.1f, \"gb_per_s\": %.1f}",
                s.packed ? "packed" : "fp16", s.sequences, s.rows, s.heads, static_cast<long long>(s.tokens),
                all, attention, layer.parts(), merge, static_cast<double>(layer.cache_bytes()) / all / 1e3);
  return row;
}

/// Whole pages of one layer from rows.
std::string TimeEncoder(const DeviceLatents& latents, int pages) {
  const DeviceArray<uint8_t> keys = Filled(int64_t{2} * pages * kPage * kDim);
  DeviceArray<uint8_t> pool(static_cast<size_t>(pages) * latents.table.record_bytes);
  std::vector<EncodeJob> jobs(static_cast<size_t>(pages));
  for (int i = 0; i < pages; ++i) {
    EncodeJob& job = jobs[static_cast<size_t>(i)];
    job.first_row = job.position = int64_t{i} * kPage;
    job.block[0] = i;
    job.end = kPage;
  }
  const DeviceArray<EncodeJob> device_jobs(jobs);
  const DeviceArray<int32_t> count(std::vector<int32_t>{pages}), error(std::vector<int32_t>{INT32_MAX});
  const DeviceArray<LatentCodec> codec(std::vector<LatentCodec>{latents.Codec(0, 0)});
  LatentEncodeParams p;
  p.layers = codec.data();
  p.layer_count = 1;
  p.most_groups = static_cast<int32_t>(latents.table.groups.size());
  p.most_group_units = latents.group_units;
  p.most_units = static_cast<int32_t>(latents.table.units.size());
  p.has_mean = latents.table.has_mean;
  p.head_dim = kDim;
  p.rotary_dims = kRope;
  p.steps = latents.steps.data();
  p.jobs = device_jobs.data();
  p.job_count = count.data();
  p.max_jobs = pages;
  p.pool = pool.data();
  p.block_bytes = latents.table.record_bytes;
  p.keys = reinterpret_cast<const uint16_t*>(keys.data());
  p.error = error.data();
  const DeviceArray<uint8_t> scratch(static_cast<size_t>(LatentCoordinateBytes(p)));
  p.coordinates = reinterpret_cast<float*>(scratch.data());
  const double us = MedianMicroseconds(
      1, [&](int, cudaStream_t stream) { Require(LaunchLatentEncode(p, stream), "launch"); });
  std::printf("encoder, %3d pages: %9.1f us\n", pages, us);
  char row[80];
  std::snprintf(row, sizeof row, "{\"encoder_pages\": %d, \"us\": %.1f}", pages, us);
  return row;
}

std::vector<std::string> Run() {
  std::vector<std::string> rows;
  const LatentSpec spec = {kRope, kLatent, {{3, kRope}}, {{4, 128}, {3, 256}, {2, 128}}};
  const DeviceLatents latents(MakeLatentPlan(spec, 1), LatentRope(spec));
  int processors = 0;
  Require(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "device");
  for (const auto& [sequences, heads, tokens] :
       {std::tuple{1, 16, int64_t{4096}}, std::tuple{1, 16, int64_t{32768}},
        std::tuple{1, 16, int64_t{131072}}, std::tuple{8, 16, int64_t{4096}},
        std::tuple{8, 16, int64_t{32768}}, std::tuple{32, 16, int64_t{8192}},
        std::tuple{1, 128, int64_t{32768}}, std::tuple{8, 128, int64_t{32768}}}) {
    for (const bool packed : {true, false})
      rows.push_back(TimeShape(latents, {sequences, heads, 1, tokens, packed}, processors));
  }
  for (const auto& [tokens, packed] :
       {std::pair{int64_t{2048}, false}, std::pair{int64_t{32768}, false}, std::pair{int64_t{32768}, true}})
    rows.push_back(TimeShape(latents, {1, 16, 512, tokens, packed}, processors));
  for (int pages : {1, 8, 32}) rows.push_back(TimeEncoder(latents, pages));
  return rows;
}

int Main(int argc, char** argv) {
  std::string out, commit = "unknown";
  for (int i = 1; i < argc; i += 2) {
    const bool known = std::strcmp(argv[i], "--out") == 0 || std::strcmp(argv[i], "--commit") == 0;
    if (!known || i + 1 == argc) {
      std::fprintf(stderr, "%s: usage: latent_gpu_bench [--out FILE] [--commit ID]\n", argv[i]);
      return 2;
    }
    (std::strcmp(argv[i], "--out") == 0 ? out : commit) = argv[i + 1];
  }
  if (const Result<DeviceLimits> limits = ReadDeviceLimits(0); !limits.ok()) {
    std::fprintf(stderr, "SKIPPED: %s\n", limits.status().message().c_str());
    return 77;
  }
  const std::vector<std::string> rows = Run();
  if (out.empty()) return 0;
  const std::string head = " \"machine\": \"" + MachineName() + "\",\n \"commit\": \"" + commit +
                           "\",\n \"command\": \"latent_gpu_bench\",\n \"notes\": \"A layer of 576 dims (rope key "
                           "64, latent 512), K3V3; gb_per_s counts the bytes that the cache holds.\",\n";
  Require(WriteResults(out, head, rows), "results");
  return 0;
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::Main(argc, argv); }
