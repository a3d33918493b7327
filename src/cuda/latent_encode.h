// Encoding of latents on the GPU: fp16 keys of tokens of one page become their bits of the page's record, as
// encode.h does for other heads.
#pragma once

#include <cstdint>

#include "blockgtq/status.h"
#include "src/cuda/encode.h"
#include "src/cuda/latent_table.h"

struct CUstream_st;

namespace blockgtq::cuda {

/// A layer's constants. Device pointers.
struct alignas(16) LatentCodec {
  int64_t record_offset = 0;            // of the layer's record in a block of the pool
  int64_t window_offset = 0;            // of its window from EncodeJob::exact on
  const LatentGroup* groups = nullptr;  // [group_count]
  const uint16_t *fragments = nullptr, *low_fragments = nullptr;  // LatentTable::key_fragments
  const float* mean = nullptr;                                    // mu [head_dim], or null
  int32_t group_count = 0, unit_count = 0;
  int32_t searched = 0, spare = 0;
};

struct LatentEncodeParams {
  const LatentCodec* layers = nullptr;  // [layer_count], on the device
  // The most of any of these layers: groups, units of a group, and units.
  int32_t layer_count = 0, most_groups = 0, most_group_units = 0, most_units = 0;
  bool has_mean = false;  // of any of these layers
  int32_t head_dim = 0, rotary_dims = 0;
  float attention_factor = 1;
  const uint64_t* steps = nullptr;  // RopeSteps

  const EncodeJob* jobs = nullptr;     // [at least *job_count]
  const int32_t* job_count = nullptr;  // read on the device: 0 does nothing
  int32_t max_jobs = 0;                // host: *job_count never exceeds it

  uint8_t* pool = nullptr;
  int64_t block_bytes = 0;

  // Source 1, when keys is null: the window, tiles [64, head_dim]. Source 2, of one layer: rows
  // [rows][head_dim]; job.first_row counts from row first_row on.
  int32_t window_tiles = 0;
  const uint16_t* keys = nullptr;
  int64_t first_row = 0;

  float* coordinates = nullptr;  // scratch: LatentCoordinateBytes
  int32_t* error = nullptr;      // EncodeParams
};

/// Bytes that encoding works in: 64 tokens of every job and layer.
int64_t LatentCoordinateBytes(const LatentEncodeParams& params);

/// The codes are those of reference::EncodeKeys up to fp32 rounding near ties. Errors: kInvalidArgument for
/// rows of several layers, or no jobs at all; kUnsupported when a group does not fit in shared memory.
Status LaunchLatentEncode(const LatentEncodeParams& params, CUstream_st* stream);

}  // namespace blockgtq::cuda
