// blockgtq-bench-attention: decode attention on the GPU, one process for all that is compared: packed, query
// preparation to final output; cuDNN's fp16 GQA attention over rows with fixed lengths (what the ratio is to)
// and over a paged cache; a pure read of the packed bytes. Every output that is timed is checked.
//
//   blockgtq-bench-attention [--out FILE] [--commit ID]
//   [BATCH,Q_HEADS,KV_HEADS,CONTEXT[,MEAN_UNITS[,HEAD_DIM]][@CONFIG]...]
//
// CONFIG, for tuning: WARPS[KIND],BLOCKS,WORKERS[,STAGES] of the packed kernel in place of what is chosen, at
// most so many STAGES as fit (which are said),
// KIND s (four warps share a tile) or w (warps are workers); then cuDNN is not timed, and no row is written.
//
// Every time is a layer's: the median of replays of a CUDA graph over so many layers (own records or keys and
// values, block table and matrices each) that the set exceeds the L2 cache several times. The schedule runs
// once a step, so it is timed apart (schedule_us). Packed layers are launched as the engine does: each may
// start while the kernel before it ends, which cuDNN's cannot; alone_us, alone_ratio: without that. Exit
// status 77: there is no device.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "bench/attention_gpu_half.cuh"
#include "bench/attention_gpu_packed.cuh"
#include "bench/gpu_results_file.h"

namespace blockgtq::cuda {
namespace {

// rel_l2, rel_l2_exact, cuDNN's
constexpr double kRoundedTolerance = 1e-3, kExactTolerance = 3e-2, kHalfTolerance = 1e-3;

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes = {
      {8, 8, 4, 131072}, {8, 8, 4, 131072, 8}, {8, 8, 4, 16384},  {8, 8, 4, 2048},      {64, 8, 4, 4096},
      {1, 8, 4, 131072}, {1, 8, 4, 131072, 8}, {1, 2, 8, 131072}, {1, 2, 8, 131072, 8}, {1, 2, 8, 524288}};
  for (int64_t context = 1024; context <= 32768; context *= 2) {
    shapes.push_back({1, 2, 8, context});
    shapes.push_back({1, 8, 4, context});
  }
  return shapes;
}

// "8s,2,66"; false when it is no configuration.
bool ParseConfig(const char* text, AskedConfig& config) {
  char kind[2] = "";
  int fields = std::sscanf(text, "%d%1[sw],%d,%d,%d", &config.variant.warps, kind, &config.cluster_blocks,
                           &config.workers, &config.stages);
  if (fields < 2) {
    fields = 1 + std::sscanf(text, "%d,%d,%d,%d", &config.variant.warps, &config.cluster_blocks,
                             &config.workers, &config.stages);
  }
  config.variant.split_tiles = kind[0] == 's';
  config.variant.warp_workers = kind[0] == 'w';
  return fields >= 4 && config.variant.warps > 0 && config.cluster_blocks > 0 && config.workers > 0 &&
         config.stages > 0;
}

// "8,32,8,16384" or with mean units, perhaps a configuration behind '@'; false when it is no shape.
bool ParseShape(const char* text, Shape& shape, std::optional<AskedConfig>& asked) {
  if (const char* config = std::strchr(text, '@')) {
    if (!ParseConfig(config + 1, asked.emplace())) return false;
  }
  int q_heads = 0;
  long long context = 0;
  const int fields = std::sscanf(text, "%d,%d,%d,%lld,%d,%d", &shape.batch, &q_heads, &shape.kv_heads,
                                 &context, &shape.mean_units, &shape.head_dim);
  if (fields < 4 || shape.batch <= 0 || shape.kv_heads <= 0 || q_heads % shape.kv_heads != 0 ||
      context <= 0 || context % kTileTokens != 0 || shape.head_dim <= 0 || shape.head_dim % 64 != 0) {
    return false;
  }
  shape.query_heads = q_heads / shape.kv_heads;
  shape.context = context;
  return true;
}

bool SameButMean(const Shape& a, const Shape& b) {
  return a.batch == b.batch && a.kv_heads == b.kv_heads && a.query_heads == b.query_heads &&
         a.context == b.context && a.head_dim == b.head_dim;
}

std::string Row(const Shape& s, const PackedTimes& packed, const HalfTimes& half,
                const DecodeConfig& config) {
  char text[900];
  std::snprintf(
      text, sizeof text,
      "{\"batch\": %d, \"q_heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"context\": %lld, "
      "\"k_bits\": 3, \"v_bits\": 3, \"mean_units\": %d, \"us\": %.2f, \"cudnn_us\": %.2f, "
      "\"read_us\": %.2f, \"ratio\": %.3f, \"bytes\": %zu, \"rel_l2\": %.3e, \"rel_l2_exact\": %.3e, "
      "\"cudnn_paged_us\": %.2f, \"cudnn_rel_l2\": %.3e, \"alone_us\": %.2f, \"alone_ratio\": %.3f, "
      "\"schedule_us\": %.2f, \"layers\": %d, \"warps\": %d, \"stages\": %d, "
      "\"cluster_blocks\": %d, \"split_tiles\": %s, \"warp_workers\": %s}",
      s.batch, s.kv_heads * s.query_heads, s.kv_heads, s.head_dim, static_cast<long long>(s.context),
      s.mean_units, packed.us, half.rows_us, packed.read_us, half.rows_us / packed.us, packed.bytes,
      packed.rel_l2, packed.rel_l2_exact, half.paged_us, half.rel_l2, packed.alone_us,
      half.rows_us / packed.alone_us, packed.schedule_us, packed.layers, config.variant.warps, config.stages,
      config.cluster_blocks, config.variant.split_tiles ? "true" : "false",
      config.variant.warp_workers ? "true" : "false");
  return text;
}

int Main(int argc, char** argv) {
  std::string out, commit = "unknown", command = "blockgtq-bench-attention";
  std::vector<Shape> shapes;
  std::vector<std::optional<AskedConfig>> configs;
  std::vector<std::string> named;
  for (int i = 1; i < argc; ++i) {
    Shape shape{};
    std::optional<AskedConfig> asked;
    if (std::strcmp(argv[i], "--commit") == 0 && i + 1 < argc) {
      commit = argv[++i];
    } else if (std::strcmp(argv[i], "--out") == 0 && i + 1 < argc) {
      out = argv[++i];
    } else if (ParseShape(argv[i], shape, asked)) {
      shapes.push_back(shape);
      configs.push_back(asked);
      named.push_back(argv[i]);
      command += std::string(" ") + argv[i];
    } else {
      std::fprintf(
          stderr,
          "%s: usage: blockgtq-bench-attention [--out FILE] [--commit ID] "
          "[BATCH,Q_HEADS,KV_HEADS,CONTEXT[,MEAN_UNITS[,HEAD_DIM]][@CONFIG]...]; "
          "contexts in multiples of 64; CONFIG: WARPS[s|w],BLOCKS,WORKERS[,STAGES]\n",
          argv[i]);
      return 2;
    }
  }
  const bool tuning = std::any_of(configs.begin(), configs.end(), [](const auto& c) { return c.has_value(); });
  if (tuning && !out.empty()) {
    std::fprintf(stderr, "--out: shapes with a configuration leave no rows\n");
    return 2;
  }
  if (shapes.empty()) shapes = AllShapes();
  configs.resize(shapes.size());
  const Result<DeviceLimits> limits = ReadDeviceLimits(0);
  if (!limits.ok()) {
    std::fprintf(stderr, "SKIPPED: %s\n", limits.status().message().c_str());
    return 77;
  }
  const std::unique_ptr<FlashAttention> flash = Require(FlashAttention::Create(), "cuDNN");
  int runtime = 0;
  Require(cudaRuntimeGetVersion(&runtime), "CUDA");
  const std::string head =
      " \"machine\": \"" + MachineName() + "\",\n \"libraries\": \"" + flash->LibraryVersion() +
      ", CUDA " + std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10) + "\",\n \"commit\": \"" + commit + "\",\n \"command\": \"" +
      command +
      "\",\n \"notes\": \"K {4 bit: a quarter of the dims, 3: half, 2: a quarter}, V 3 bit, 8-bit log norms: "
      "100 bytes a token a KV head of 128. Times are a layer's, in a chain of layers as the engine launches "
      "it "
      "(alone_us: no overlap of kernels); ratio is cudnn_us / us.\",\n";
  std::printf("%18s %4s %8s %8s %8s %8s %8s %6s %6s\n", "shape", "mean", "us", "alone", "cuDNN", "paged",
              "read", "ratio", "share");
  std::vector<std::string> rows;
  std::vector<std::pair<Shape, HalfTimes>> known;
  int wrong = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Shape& s = shapes[i];
    PackedBench bench(s, *limits, configs[i]);
    const PackedTimes packed = bench.Run();
    const bool packed_right = packed.rel_l2 <= kRoundedTolerance && packed.rel_l2_exact <= kExactTolerance;
    if (configs[i]) {
      std::printf("%s: %.2f us with %d stages, alone %.2f, read %.2f, rel_l2 %.2e, exact %.2e\n",
                  named[i].c_str(), packed.us, bench.config().stages, packed.alone_us, packed.read_us,
                  packed.rel_l2, packed.rel_l2_exact);
      std::fflush(stdout);
      wrong += !packed_right;
      continue;
    }
    HalfTimes half;
    for (const auto& [shape, times] : known) {
      if (SameButMean(shape, s)) half = times;
    }
    if (half.rows_us == 0) {
      half = HalfBench(*flash, s, bench.queries()).Run();
      known.emplace_back(s, half);
    }
    rows.push_back(Row(s, packed, half, bench.config()));
    const std::string shape = std::to_string(s.batch) + ", " + std::to_string(s.kv_heads * s.query_heads) +
                              "/" + std::to_string(s.kv_heads) + ", " + std::to_string(s.context);
    std::printf("%18s %4d %8.1f %8.1f %8.1f %8.1f %8.1f %6.2f %5.0f%%\n", shape.c_str(), s.mean_units,
                packed.us, packed.alone_us, half.rows_us, half.paged_us, packed.read_us,
                half.rows_us / packed.us, 100 * packed.read_us / packed.us);
    if (!packed_right || !(half.rel_l2 <= kHalfTolerance)) {
      ++wrong;
      std::printf("WRONG OUTPUT: rel_l2 %.3e, exact %.3e, cuDNN %.3e\n", packed.rel_l2, packed.rel_l2_exact,
                  half.rel_l2);
    }
    std::fflush(stdout);
  }
  if (wrong > 0) {
    std::fprintf(stderr, "%d shapes are wrong: no results written\n", wrong);
    return 1;
  }
  if (!out.empty()) Require(WriteResults(out, head, rows), "results");
  return 0;
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::Main(argc, argv); }
