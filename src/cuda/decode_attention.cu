// Chooses the kernel's configuration and launches a layer's kernels.
#include <algorithm>
#include <cmath>

#include "src/cuda/combine.h"
#include "src/cuda/decode_attention.h"
#include "src/cuda/decode_layout.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/query_prep.h"
#include "src/cuda/schedule.h"

namespace blockgtq::cuda {
namespace {

constexpr int kSplitTilesABlock = 2;  // up to so many, four warps share a tile
constexpr double kClusterMicroseconds[kClusterSizes] = {0, 0.2, 0.25, 0.3, 0.4};
// In a model's step: the largest clusters wait until a product's blocks have left all of their processors.
constexpr double kLargestClusterWaitMicroseconds = 1.0;
constexpr int kWideWarps = 12;
constexpr int kWarpWorkerPairsAProcessor = 2;  // pairs from which warps work alone

Status Unsupported(const std::string& what) {
  return Status(ErrorCode::kUnsupported, "CUDA decode attention: " + what);
}

DecodeKernelPointer FindKernel(const DecodeShape& shape, const HeadTraits& traits,
                               const DecodeVariant& variant) {
  if (variant.warp_workers) {
    const bool fits = shape.head_dim == 128 && traits.value_width == 3 && variant.few_heads && !variant.mean;
    return fits && variant.warps == kWarpWorkerWarps ? WarpWorkerDecodeKernel() : nullptr;
  }
  if (shape.head_dim == 64) return DecodeKernel64(variant);
  if (shape.head_dim == 256) return DecodeKernel256(variant);
  DecodeKernelPointer kernel = traits.value_width == 3 ? DecodeKernel128Value3(variant) : nullptr;
  return kernel ? kernel : DecodeKernel128(variant);
}

int SharedBytes(const DecodeConfig& c, const DecodeVariant& v, int stages) {
  if (v.warp_workers) {
    return WarpSharedLayout::For(v.warps, c.shape.kv_heads, c.shape.batch, c.query_layout.bytes, stages,
                                 c.stage_bytes)
        .total;
  }
  return SharedLayout::For(v.warps, v.split_tiles ? 4 : 1, c.shape.head_dim, v.few_heads, v.mean,
                           c.traits.direct_units, c.shape.kv_heads, c.shape.batch, c.query_layout.bytes,
                           stages, c.stage_bytes, c.part_heads, c.cluster_blocks)
      .total;
}

// Takes a variant with as many as `stages` ring stages; false when it has no instance or no room for
// `least_stages`.
bool TryVariant(DecodeConfig& config, const DecodeVariant& variant, int stages, int least_stages,
                const DeviceLimits& limits) {
  config.kernel = FindKernel(config.shape, config.traits, variant);
  if (!config.kernel) return false;
  DecodeVariant with_rope = variant;
  with_rope.rope = true;
  config.rope_kernel = variant.warp_workers ? nullptr : FindKernel(config.shape, config.traits, with_rope);
  while (stages >= least_stages && SharedBytes(config, variant, stages) > limits.shared_bytes) --stages;
  if (stages < least_stages) return false;
  config.variant = variant;
  config.stages = stages;
  config.shared_bytes = SharedBytes(config, variant, stages);
  return true;
}

int64_t Pairs(const DecodeConfig& config) {
  return int64_t{config.shape.batch} * config.shape.kv_heads * config.head_parts;
}

// A worker's blocks, the number of workers, and what that should take.
struct Split {
  int blocks = 1, workers = 1;
  double tiles_a_block = 0, us = 0;
};

// What the tiles of a block take with so many warps, a tile each in turn: rounds of a length that depends on
// how many query heads there are, and for 12 warps a longer start.
double TileMicroseconds(double tiles, int warps, bool few_heads) {
  const double rounds = std::ceil(tiles / warps);
  if (warps == kWideWarps) {
    return few_heads ? 1.35 + 2.56 * rounds : std::min(0.45 + 3.65 * rounds, 2.55 + 2.95 * rounds);
  }
  return (few_heads ? 2.1 : 2.45) * rounds;
}

// The split that should take the least time with blocks of so many warps, and at most `most_blocks` of them a
// cluster (larger ones need more shared memory). The numbers are microseconds on an H200, from timings of
// many splits: the tiles; the cluster's merge; the heads that a block finishes; the merge through memory
// where several workers share a pair; processors that the kernel behind cannot start on. With more pairs than
// processors there is one split, and the tiles alone tell numbers of warps apart.
Split ChooseSplit(const DecodeConfig& config, const DeviceLimits& limits, int warps, int most_blocks) {
  const int64_t pairs = Pairs(config);
  const double tiles_a_pair = static_cast<double>(
      std::max<int64_t>(1, (config.shape.expected_tokens + kTileTokens - 1) / kTileTokens));
  const bool few_heads = config.part_heads <= kFewQueryHeads;
  const double pairs_a_block = static_cast<double>(pairs) / limits.processors;
  Split best = {1, limits.processors, pairs_a_block * tiles_a_pair,
                pairs > limits.processors ? pairs_a_block * TileMicroseconds(tiles_a_pair, warps, few_heads)
                                          : 1e30};
  for (int i = 0; i < kClusterSizes && 1 << i <= most_blocks; ++i) {
    const int blocks = 1 << i, heads_a_block = HeadsABlock(config.part_heads, blocks);
    const int64_t clusters = i == 0 ? limits.processors : limits.clusters[i], most = clusters / pairs;
    for (int64_t workers_a_pair = 1; workers_a_pair <= most; ++workers_a_pair) {
      const double tiles = std::ceil(tiles_a_pair / static_cast<double>(workers_a_pair * blocks));
      const double share = static_cast<double>(pairs * workers_a_pair * blocks) / limits.processors;
      double us = tiles <= kSplitTilesABlock && warps != kWideWarps
                      ? 1.4
                      : TileMicroseconds(tiles, warps, few_heads);
      if (config.shape.has_exact && blocks == kMaxClusterBlocks) us += kLargestClusterWaitMicroseconds;
      us += kClusterMicroseconds[i] + 0.15 * (heads_a_block - 1) + 0.8 * std::max(0.0, share - 0.5);
      if (workers_a_pair > 1) us += 1.35 + 0.03 * static_cast<double>(workers_a_pair * heads_a_block);
      if (us >= best.us) continue;
      // All of them where a pair gets as many as there are: ragged batches use the rest.
      best = {blocks, static_cast<int>(workers_a_pair == most ? clusters : pairs * workers_a_pair), tiles,
              us};
    }
  }
  return best;
}

bool ChooseVariant(DecodeConfig& config, const DeviceLimits& limits) {
  DecodeVariant variant;
  variant.few_heads = config.part_heads <= kFewQueryHeads;
  variant.mean = config.traits.mean_units > 0;
  DecodeVariant narrow = variant, wide = variant, split_tiles = variant, alone = variant;
  wide.warps = kWideWarps;
  split_tiles.split_tiles = true;
  alone.warps = kWarpWorkerWarps;
  alone.warp_workers = true;
  if (Pairs(config) >= kWarpWorkerPairsAProcessor * limits.processors &&
      TryVariant(config, alone, 2, 1, limits)) {
    config.workers = limits.processors * kWarpWorkerWarps;
    config.cluster_blocks = 1;
    return true;
  }
  const auto take = [&](const Split& split) {
    config.workers = split.workers;
    config.cluster_blocks = split.blocks;
  };
  for (int most_blocks = kMaxClusterBlocks; most_blocks > 0; most_blocks /= 2) {
    const Split split = ChooseSplit(config, limits, narrow.warps, most_blocks),
                wide_split = ChooseSplit(config, limits, wide.warps, most_blocks);
    if (wide_split.us < split.us) {
      take(wide_split);
      if (TryVariant(config, wide, 2, 2, limits)) return true;
    }
    take(split);
    if ((split.tiles_a_block <= kSplitTilesABlock && TryVariant(config, split_tiles, 2, 1, limits)) ||
        TryVariant(config, narrow, 3, 1, limits) || TryVariant(config, split_tiles, 3, 1, limits)) {
      return true;
    }
  }
  return false;
}

// The scratch's arrays one after another, each aligned; with a base of null, `end` is the size.
struct ScratchArrays {
  uint8_t* base;
  int64_t end = 0;
  template <typename T>
  T* Take(int64_t count) {
    T* at = reinterpret_cast<T*>(base + end);
    end = (end + count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
};

int64_t CarveScratch(const DecodeConfig& config, uint8_t* base, DecodeParams& p) {
  const int64_t pairs = Pairs(config), partials = config.variant.warp_workers ? pairs + config.workers : 0;
  ScratchArrays scratch{base};
  p.query_blocks = scratch.Take<uint8_t>(pairs * config.query_layout.bytes);
  p.ranges = scratch.Take<WorkRange>(config.workers);
  p.tile_prefix = scratch.Take<int32_t>(config.shape.batch + 1);
  p.spans = scratch.Take<WorkerSpan>(pairs);
  p.partial = scratch.Take<float>(partials * kMaxQueryHeads * config.shape.head_dim);
  p.partial_log_sum = scratch.Take<float>(partials * kMaxQueryHeads);
  return scratch.end;
}

int64_t CarveExchange(const DecodeConfig& config, uint8_t* base, DecodeParams& p) {
  const int64_t sent = config.variant.warp_workers ? 0 : Pairs(config) + config.workers;
  ScratchArrays exchange{base};
  p.step = exchange.Take<uint32_t>(1);
  p.sent = exchange.Take<uint64_t>(sent * kMaxQueryHeads * config.shape.head_dim);
  p.sent_log_sum = exchange.Take<uint64_t>(sent * kMaxQueryHeads);
  return exchange.end;
}

Status CheckShape(const DecodeShape& shape) {
  if (shape.batch < 1 || shape.kv_heads < 1 || shape.expected_tokens < 0 || shape.window_tiles < 0) {
    return Status(ErrorCode::kInvalidArgument, "CUDA decode attention: an empty batch, or a negative size");
  }
  if (shape.head_dim != 64 && shape.head_dim != 128 && shape.head_dim != 256) {
    return Unsupported("head dim " + std::to_string(shape.head_dim) + "; the kernels have 64, 128 and 256");
  }
  if (shape.query_heads < 1 || shape.query_heads > kMaxGroupHeads) {
    return Unsupported(std::to_string(shape.query_heads) + " query heads a KV head; the kernels have 1.." +
                       std::to_string(kMaxGroupHeads));
  }
  return Status::Ok();
}

DecodeConfig StartConfig(const DecodeShape& shape, const HeadTraits& traits, const DeviceLimits& limits,
                         int head_parts) {
  DecodeConfig config;
  config.shape = shape;
  config.traits = traits;
  config.head_parts = head_parts;
  config.part_heads = (shape.query_heads + config.head_parts - 1) / config.head_parts;
  config.query_layout = QueryBlockLayout::For(traits.key_units, config.part_heads <= kFewQueryHeads);
  config.stage_bytes = AlignShared(traits.record_bytes);
  // Half of L2: it holds more than codes.
  const int64_t codes = int64_t{shape.batch} * shape.kv_heads * shape.layers *
                        (shape.expected_tokens / kTileTokens) * traits.record_bytes;
  config.codes_once = codes > limits.l2_bytes / 2;
  return config;
}

int HeadParts(const DecodeShape& shape) { return (shape.query_heads + kMaxQueryHeads - 1) / kMaxQueryHeads; }

Status LaunchKernel(const DecodeConfig& config, const DecodeParams& given, bool early, CUstream_st* stream) {
  DecodeParams params = given;
  params.early = early;
  const DecodeKernelPointer kernel = params.rope.enabled ? config.rope_kernel : config.kernel;
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, config.shared_bytes),
      "decode attention's shared memory"));
  if (config.cluster_blocks > 1) {
    BGTQ_RETURN_IF_ERROR(
        CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                   "decode attention's clusters"));
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (config.cluster_blocks > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(config.cluster_blocks);
    attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if (early && HasSm90Code()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim =
      dim3(static_cast<unsigned>(config.variant.warp_workers ? config.workers / config.variant.warps
                                                             : config.workers * config.cluster_blocks));
  launch.blockDim = dim3(static_cast<unsigned>(config.variant.warps * 32));
  launch.dynamicSmemBytes = static_cast<size_t>(config.shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = count;
  return CudaStatus(cudaLaunchKernelEx(&launch, kernel, params), "decode attention");
}

// What follows from the variant and the split that were chosen.
void FinishConfig(DecodeConfig& config, const DeviceLimits& limits) {
  config.resident_workers = limits.processors;
  for (int i = 1; i < kClusterSizes; ++i) {
    if (config.cluster_blocks == 1 << i) config.resident_workers = limits.clusters[i];
  }
  DecodeParams unused{};
  config.scratch_bytes = CarveScratch(config, nullptr, unused);
  config.exchange_bytes = CarveExchange(config, nullptr, unused);
}

}  // namespace

Result<DecodeConfig> ConfigureDecode(const DecodeShape& shape, const HeadTraits& traits,
                                     const DeviceLimits& limits) {
  BGTQ_RETURN_IF_ERROR(CheckShape(shape));
  DecodeConfig config = StartConfig(shape, traits, limits, HeadParts(shape));
  bool fits = ChooseVariant(config, limits);
  if (!fits && config.part_heads > kFewQueryHeads) {  // less shared memory, for two passes over the codes
    config = StartConfig(shape, traits, limits, 2 * HeadParts(shape));
    fits = ChooseVariant(config, limits);
  }
  if (!fits) {
    return Unsupported(
        "a batch of " + std::to_string(shape.batch) + " with " + std::to_string(shape.kv_heads) +
        " KV heads of dim " + std::to_string(shape.head_dim) + " does not fit " +
        std::to_string(limits.shared_bytes) +
        " bytes of shared memory; use a smaller batch, or a plan with less mean and fewer bits");
  }
  FinishConfig(config, limits);
  return config;
}

Result<DecodeConfig> ConfigureDecodeAs(const DecodeShape& shape, const HeadTraits& traits,
                                       const DeviceLimits& limits, const DecodeVariant& variant, int stages,
                                       int cluster_blocks, int workers) {
  BGTQ_RETURN_IF_ERROR(CheckShape(shape));
  DecodeConfig config = StartConfig(shape, traits, limits, HeadParts(shape));
  DecodeVariant asked = variant;
  asked.few_heads = config.part_heads <= kFewQueryHeads;
  asked.mean = traits.mean_units > 0;
  config.cluster_blocks = cluster_blocks;
  config.workers = workers;
  if (!TryVariant(config, asked, stages, 1, limits) || (cluster_blocks > 1 && !HasSm90Code())) {
    return Unsupported("there is no such configuration");
  }
  FinishConfig(config, limits);
  return config;
}

void BindDecode(const DecodeConfig& config, uint8_t* scratch, uint8_t* exchange, DecodeParams& params) {
  params.batch = config.shape.batch;
  params.kv_heads = config.shape.kv_heads;
  params.query_heads = config.shape.query_heads;
  params.head_parts = config.head_parts;
  params.part_heads = config.part_heads;
  params.work_heads = config.shape.kv_heads * config.head_parts;
  params.head_dim = config.shape.head_dim;
  params.exact_tiles = config.shape.has_exact ? 1 + config.shape.window_tiles : 0;
  params.window_tiles =
      std::max(config.shape.window_tiles, 1);  // a divisor, also of tiles that are not there
  params.max_key_units = config.traits.key_units;
  params.max_direct_units = config.traits.direct_units;
  params.query_layout = config.query_layout;
  params.workers = config.workers;
  params.cluster_blocks = config.cluster_blocks;
  params.codes_once = config.codes_once;
  params.stages = config.stages;
  params.stage_bytes = config.stage_bytes;
  CarveScratch(config, scratch, params);
  CarveExchange(config, exchange, params);
}

Status LaunchDecodeSchedule(const DecodeConfig& config, const DecodeParams& params, CUstream_st* stream) {
  const int teams = config.variant.split_tiles ? config.variant.warps / 4 : config.variant.warps;
  return LaunchSchedule(
      params, {!config.variant.warp_workers, config.cluster_blocks * teams, config.resident_workers}, stream);
}

Status LaunchDecodeAttention(const DecodeConfig& config, const DecodeParams& params, bool overlap,
                             CUstream_st* stream) {
  if (params.launch >= kMaxLaunchesAStep) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA decode attention: launch " + std::to_string(params.launch) +
                      " of a step; there may be " + std::to_string(kMaxLaunchesAStep));
  }
  if (params.rope.enabled && !config.fuses_rope()) {
    return Status(ErrorCode::kInvalidArgument,
                  "CUDA decode attention: this configuration does not rotate; rotate and store ahead of it");
  }
  if (!config.variant.warp_workers) return LaunchKernel(config, params, overlap, stream);
  BGTQ_RETURN_IF_ERROR(LaunchQueryPrep(params, overlap, stream));
  BGTQ_RETURN_IF_ERROR(LaunchKernel(config, params, true, stream));
  return LaunchCombine(params, stream);
}

}  // namespace blockgtq::cuda
