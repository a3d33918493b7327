// Decode attention on the GPU: one new token of every sequence of a batch attends to its packed cache,
// straight from the codes, and to its exact tokens. What a backend calls:
//
//   once a model   TraitsOf / BuildHeadTable (head_table.h), ConfigureDecode, scratch and exchange memory
//   once a step    LaunchDecodeSchedule
//   once a layer   LaunchDecodeAttention
//
// Everything that depends on lengths happens on the device: a step captured in a CUDA graph stays right as
// sequences grow (within the block table).
#pragma once

#include <cstdint>

#include "blockgtq/status.h"
#include "src/cuda/decode_kernels.h"
#include "src/cuda/decode_params.h"
#include "src/cuda/head_table.h"

struct CUstream_st;

namespace blockgtq::cuda {

struct DecodeShape {
  int batch = 0, kv_heads = 0, head_dim = 0;
  int query_heads = 0;          // a KV head
  int64_t expected_tokens = 0;  // coded tokens a sequence, about: chooses the configuration, any length runs
  bool has_exact = false;       // sinks or a window in fp16
  int window_tiles = 0;         // of the ring; with has_exact
  int layers = 1;               // of the model: a step's codes may stay in L2 until the next one
};

inline constexpr int kClusterSizes = 5;
struct DeviceLimits {
  int processors = 0;    // SMs
  int shared_bytes = 0;  // a block may have
  int64_t l2_bytes = 0;
  // Clusters of 1, 2, 4, 8, 16 blocks that run at once, a block a processor; compute capability 8: 1 block
  // only.
  int clusters[kClusterSizes] = {};
};
/// Makes the device the current one. Errors: kUnsupported when there is none, or this build has no kernels
/// for it.
Result<DeviceLimits> ReadDeviceLimits(int device);

struct DecodeConfig {
  DecodeShape shape;
  HeadTraits traits;
  DecodeVariant variant;
  DecodeKernelPointer kernel = nullptr, rope_kernel = nullptr;  // rope_kernel: with DecodeParams::rope
  int head_parts = 1, part_heads = 0;                           // decode_params.h
  int workers = 0, cluster_blocks = 1, stages = 0, stage_bytes = 0, shared_bytes = 0;
  int resident_workers = 0;  // that the device runs at once
  bool codes_once = false;
  QueryBlockLayout query_layout{};
  int64_t scratch_bytes = 0, exchange_bytes = 0;
  /// Whether the kernel can rotate and store the newest tokens itself (DecodeParams::rope).
  bool fuses_rope() const { return shape.has_exact && shape.window_tiles > 0 && rope_kernel != nullptr; }
  /// Tokens whose probabilities are rounded to 255ths of the largest among them.
  int rounding_tokens() const { return variant.split_tiles ? kTileTokens / 4 : kTileTokens; }
};

/// Errors: kUnsupported naming what there is no kernel for (head dim, query heads a KV head, shared memory);
/// kInvalidArgument for an empty batch.
Result<DecodeConfig> ConfigureDecode(const DecodeShape& shape, const HeadTraits& traits,
                                     const DeviceLimits& limits);

/// The same with a given variant (its few_heads and mean follow from shape and traits), at most `stages` ring
/// stages, cluster size and number of workers: for tests and tuning. Errors: kUnsupported as well when there
/// is no such variant.
Result<DecodeConfig> ConfigureDecodeAs(const DecodeShape& shape, const HeadTraits& traits,
                                       const DeviceLimits& limits, const DecodeVariant& variant, int stages,
                                       int cluster_blocks, int workers);

/// Fills the fields of `params` that follow from the configuration: shapes, scratch pointers, kernel set-up.
/// scratch: config.scratch_bytes of device memory, 256-byte aligned; need not be cleared.
/// exchange: config.exchange_bytes of device memory, 256-byte aligned, all zero when it is new, and used for
/// nothing but this: configurations may share it.
void BindDecode(const DecodeConfig& config, uint8_t* scratch, uint8_t* exchange, DecodeParams& params);

/// params: bound; coded_end, sinks, window set, and with a window length.
Status LaunchDecodeSchedule(const DecodeConfig& config, const DecodeParams& params, CUstream_st* stream);

/// Query preparation to final output. params: bound, every field set; `launch` differs from those of the
/// other launches since the schedule. overlap: this layer's kernels may start while the kernel ahead of them
/// in the stream still runs. They wait for it before they read queries or lengths of exact tokens, or write
/// anything; no kernel that may still run then (kernels ahead may have been let start early themselves) may
/// write codes, block table, coded_end or the schedule, nor, with a window, length. With params.rope they
/// wait before they read its q, k, v alone, so none may write lengths, targets or exact tokens either.
/// Preconditions on device data (not checked): coded_end <= 64 * max_pages; exact tokens fit the window ring.
/// Accuracy: docs/kernels.md. Errors: kInvalidArgument where `launch` is too large, or params.rope is asked
/// of a configuration without it.
Status LaunchDecodeAttention(const DecodeConfig& config, const DecodeParams& params, bool overlap,
                             CUstream_st* stream);

}  // namespace blockgtq::cuda
