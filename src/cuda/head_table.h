// The constants of one layer as the decode kernels want them: offsets and passes of every KV head, transforms
// in fp16 and tensor-core order. Host code; the caller copies the arrays to the device once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "blockgtq/status.h"
#include "src/codec/plan.h"
#include "src/core/rope.h"
#include "src/cuda/decode_params.h"

namespace blockgtq::cuda {

/// What the launch configuration depends on; the largest over all layers of a model.
struct HeadTraits {
  int key_units = 0, mean_units = 0, record_bytes = 0;
  int value_width = 0;   // of every head, or 0 when heads differ
  int direct_units = 0;  // of the mean (mean_layout.h)
  /// Folds another layer's traits in. Start from the first layer's: an empty one has no value width.
  void Include(const HeadTraits& other);
};

struct HeadTable {
  HeadTraits traits;
  int64_t layer_bytes = 0;                // of a page's records of this layer: heads one after another
  std::vector<DeviceHead> heads;          // [kv_heads]
  std::vector<uint16_t> query_transform;  // shapes: decode_params.h
  std::vector<uint16_t> value_fragments;
  std::vector<uint8_t> mean_constants;  // empty without a mean
};

/// The traits of a layer, and whether the kernels can do it.
/// Errors: kUnsupported naming the head and what has no kernel (head dim other than 64, 128 and 256,
/// fp16 norms, more than 8 groups); kInvalidArgument when the RoPE has another head dim.
Result<HeadTraits> TraitsOf(std::span<const HeadPlan> heads, const RopeConfig& rope);

/// heads   the layer's KV heads
/// traits  of the whole model: array strides follow them
/// Errors: those of TraitsOf; kInvalidArgument when the layer exceeds `traits`.
Result<HeadTable> BuildHeadTable(std::span<const HeadPlan> heads, const HeadTraits& traits,
                                 const RopeConfig& rope);

}  // namespace blockgtq::cuda
