// Chooses the kernel's configuration and launches a layer's kernels.
#include "src/cuda/combine.h"
#include "src/cuda/decode_attention.h"
#include "src/cuda/decode_kernel.cuh"
#include "src/cuda/exact_attention.h"
#include "src/cuda/launch.cuh"
#include "src/cuda/query_prep.h"
#include "src/cuda/schedule.h"

namespace blockgtq::cuda {
namespace {

constexpr int kFewTilesABlock = 32;  // up to so many, 8 warps beat 12: prologue and merge are shorter
constexpr int kWarpWorkerPairsAProcessor = 2;  // (sequence, head) pairs from which warps work alone
constexpr int kByKvHeadPairs = 64;             // pairs from which the combine kernel takes a block a KV head

Status Unsupported(const std::string& what) {
  return Status(ErrorCode::kUnsupported, "CUDA decode attention: " + what);
}

DecodeKernelPointer FindKernel(const DecodeShape& shape, const HeadTraits& traits,
                               const DecodeVariant& variant) {
  if (shape.head_dim == 64) return DecodeKernel64(variant);
  DecodeKernelPointer kernel = traits.value_width == 3 ? DecodeKernel128Value3(variant) : nullptr;
  return kernel ? kernel : DecodeKernel128(variant);
}

// Tries a variant with as many as `stages` ring stages; false when it has no instance or no room for
// `least_stages`.
bool TryVariant(DecodeConfig& config, const DecodeVariant& variant, int stages, int least_stages,
                const DeviceLimits& limits) {
  config.kernel = FindKernel(config.shape, config.traits, variant);
  if (!config.kernel) return false;
  for (; stages >= least_stages; --stages) {
    const SharedLayout layout =
        SharedLayout::For(variant.warps, config.shape.head_dim, variant.few_heads, variant.mean,
                          variant.warp_workers, config.shape.kv_heads, config.shape.batch,
                          config.query_layout.bytes, config.traits.mean_units, stages, config.stage_bytes);
    if (layout.total > limits.shared_bytes) continue;
    config.variant = variant;
    config.stages = stages;
    config.shared_bytes = layout.total;
    config.blocks = limits.processors;
    config.workers = limits.processors * (variant.warp_workers ? variant.warps : 1);
    return true;
  }
  return false;
}

bool ChooseVariant(DecodeConfig& config, const DeviceLimits& limits) {
  const DecodeShape& shape = config.shape;
  const int64_t pairs = static_cast<int64_t>(shape.batch) * shape.kv_heads;
  const int64_t tiles = pairs * ((shape.expected_tokens + kTileTokens - 1) / kTileTokens);
  DecodeVariant variant;
  variant.few_heads = shape.query_heads <= kFewQueryHeads;
  variant.mean = config.traits.mean_units > 0;
  const DecodeVariant narrow = variant;
  variant.warps = 12;
  if (pairs >= kWarpWorkerPairsAProcessor * limits.processors) {
    variant.warp_workers = true;
    if (TryVariant(config, variant, 2, 2, limits)) return true;
    variant.warp_workers = false;
  }
  if (tiles > int64_t{kFewTilesABlock} * limits.processors && TryVariant(config, variant, 2, 2, limits)) {
    return true;
  }
  return TryVariant(config, narrow, 3, 1, limits);
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
  const int64_t pairs = static_cast<int64_t>(config.shape.batch) * config.shape.kv_heads;
  const int64_t exact = pairs * (config.shape.has_exact ? 1 + config.shape.window_tiles : 0);
  const int64_t partials = pairs + config.workers;
  ScratchArrays scratch{base};
  p.query_blocks = scratch.Take<uint8_t>(pairs * config.query_layout.bytes);
  p.ranges = scratch.Take<WorkRange>(config.workers);
  p.tile_prefix = scratch.Take<int32_t>(config.shape.batch + 1);
  p.spans = scratch.Take<WorkerSpan>(pairs);
  p.partial = scratch.Take<float>(partials * kMaxQueryHeads * config.shape.head_dim);
  p.partial_state = scratch.Take<SoftmaxState>(partials * kMaxQueryHeads);
  p.exact_partial = scratch.Take<float>(exact * kMaxQueryHeads * config.shape.head_dim);
  p.exact_state = scratch.Take<SoftmaxState>(exact * kMaxQueryHeads);
  return scratch.end;
}

}  // namespace

Result<DeviceLimits> ReadDeviceLimits(int device) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count <= device) {
    (void)cudaGetLastError();
    return Unsupported("there is no CUDA device " + std::to_string(device) +
                       (found == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(found) + ")"));
  }
  cudaDeviceProp properties;
  BGTQ_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device), "reading the device's limits"));
  if (properties.major != 9) {
    return Unsupported(std::string(properties.name) + " has compute capability " +
                       std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                       "; the kernels are built for 9.0");
  }
  return DeviceLimits{properties.multiProcessorCount, static_cast<int>(properties.sharedMemPerBlockOptin)};
}

Result<DecodeConfig> ConfigureDecode(const DecodeShape& shape, const HeadTraits& traits,
                                     const DeviceLimits& limits) {
  if (shape.batch < 1 || shape.kv_heads < 1 || shape.expected_tokens < 0 || shape.window_tiles < 0) {
    return Status(ErrorCode::kInvalidArgument, "CUDA decode attention: an empty batch, or a negative size");
  }
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    return Unsupported("head dim " + std::to_string(shape.head_dim) + "; the kernels have 64 and 128");
  }
  if (shape.query_heads < 1 || shape.query_heads > kMaxQueryHeads) {
    return Unsupported(std::to_string(shape.query_heads) + " query heads a KV head; the kernels have 1.." +
                       std::to_string(kMaxQueryHeads));
  }
  DecodeConfig config;
  config.shape = shape;
  config.traits = traits;
  config.query_layout =
      QueryBlockLayout::For(traits.key_units, traits.mean_units, shape.query_heads <= kFewQueryHeads);
  config.stage_bytes = SharedLayout::Align(traits.record_bytes);
  if (!ChooseVariant(config, limits)) {
    return Unsupported("a batch of " + std::to_string(shape.batch) + " with " +
                       std::to_string(shape.kv_heads) + " KV heads does not fit " +
                       std::to_string(limits.shared_bytes) + " bytes of shared memory; use a smaller batch");
  }
  config.combine_by_kv_head = static_cast<int64_t>(shape.batch) * shape.kv_heads >= kByKvHeadPairs ||
                              config.workers > kMaxWholeSplits;
  DecodeParams unused{};
  config.scratch_bytes = CarveScratch(config, nullptr, unused);
  return config;
}

void BindDecode(const DecodeConfig& config, uint8_t* scratch, DecodeParams& params) {
  params.batch = config.shape.batch;
  params.kv_heads = config.shape.kv_heads;
  params.query_heads = config.shape.query_heads;
  params.head_dim = config.shape.head_dim;
  params.exact_tiles = config.shape.has_exact ? 1 + config.shape.window_tiles : 0;
  params.window_tiles = config.shape.window_tiles;
  params.max_key_units = config.traits.key_units;
  params.max_mean_units = config.traits.mean_units;
  params.query_layout = config.query_layout;
  params.workers = config.workers;
  params.stages = config.stages;
  params.stage_bytes = config.stage_bytes;
  CarveScratch(config, scratch, params);
}

Status LaunchDecodeSchedule(const DecodeConfig& config, const DecodeParams& params, CUstream_st* stream) {
  return LaunchSchedule(params.coded_end, params.sinks, params.batch, params.kv_heads, params.workers,
                        !config.variant.warp_workers, const_cast<WorkRange*>(params.ranges),
                        const_cast<int32_t*>(params.tile_prefix), const_cast<WorkerSpan*>(params.spans),
                        stream);
}

Status LaunchDecodeAttention(const DecodeConfig& config, const DecodeParams& given, bool overlap,
                             CUstream_st* stream) {
  DecodeParams params = given;
  params.combine_matrix = config.combine_by_kv_head ? params.value_fragments : params.value_rows;
  const bool exact = params.exact_tiles > 0;
  if (exact) BGTQ_RETURN_IF_ERROR(LaunchExactAttention(params, overlap, stream));
  BGTQ_RETURN_IF_ERROR(LaunchQueryPrep(params, config.variant.few_heads, exact || overlap, stream));
  BGTQ_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(config.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, config.shared_bytes),
      "decode attention's shared memory"));
  BGTQ_RETURN_IF_ERROR(Launch("decode attention", config.kernel, config.blocks, config.variant.warps * 32,
                              config.shared_bytes, true, stream, params));
  return LaunchCombine(params, config.combine_by_kv_head, stream);
}

}  // namespace blockgtq::cuda
