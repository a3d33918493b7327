// Attention over a cache on the GPU: rotates and stores new tokens, encodes pages that leave the window, and
// attends: decoded tokens and strict rows by the packed kernels, prompt chunks by a library kernel over keys
// and values unpacked into a bounded scratch.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "src/backend/backend.h"
#include "src/cuda/decode_attention.h"
#include "src/cuda/device.h"
#include "src/cuda/flash_attention.h"
#include "src/cuda/layer_constants.h"
#include "src/cuda/step_batch.h"

namespace blockgtq::cuda {

/// Device pointers of one layer's attention: fp32 as the products leave them, out in fp16.
struct AttentionRows {
  const float *queries = nullptr, *keys = nullptr,
              *values = nullptr;  // [rows, heads * D], [rows, kv_heads * D]
  uint16_t* out = nullptr;        // [rows, heads * D]
};

class AttentionOp {
 public:
  /// flash: gives the library kernels, loaded when first asked for. Errors: kUnsupported naming what of the
  /// cache or plan has no kernel; kOutOfMemory.
  static Result<std::unique_ptr<AttentionOp>> Create(Device& device,
                                                     std::function<Result<FlashAttention*>()> flash,
                                                     KvCache& cache, const LayerRopes& ropes);

  /// Plans a step and uploads its numbers.
  Status BeginStep(const StepInput& input);
  const StepBatch& batch() const { return batch_; }
  /// What the launches of a decode step depend on: equal shapes, equal launches.
  using StepShape = std::array<int64_t, 3>;  // rows, block-table stride, coded tokens rounded up
  StepShape shape() const;

  /// The operation of Backend::Attention for one layer. Only launches, in a decode step.
  Status Run(const AttentionCall& call, const AttentionRows& rows);

  /// After the last layer: encodes pages that leave the window in a decode step, and sends for the error
  /// words.
  Status EndStep();
  /// What the error words said at the last EndStep whose work is done (Device::Synchronize). Errors:
  /// kNonFinite naming layer and position, once.
  Status TakeErrors();

 private:
  AttentionOp(Device& device, std::function<Result<FlashAttention*>()> flash, KvCache& cache,
              const LayerRopes& ropes);
  Status UploadConstants();
  Status ReserveRows(const AttentionCall& call);
  Status Observe(const AttentionCall& call, const AttentionRows& rows);
  Status Store(const AttentionCall& call, const AttentionRows& rows, const Segment& s, uint16_t* keys,
               uint16_t* values, int64_t first_token_row);
  Status Encode(const Segment& s, int first_layer, int layers, const uint16_t* keys, const uint16_t* values);
  Status AttendRows(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status AttendChunk(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status Unpack(const Segment& s, int layer, int64_t first, int64_t count, uint16_t* keys, uint16_t* values);
  Status AttendHalf(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status ReservePrefix(int64_t tokens);
  Status AttendHalfWindows(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  HalfKeyValues HalfPages(int layer, const Segment& s) const;
  HalfKeyValues PrefixRows(int64_t bound) const;
  AttentionHeads Heads(const AttentionCall& call) const;

  Device& device_;
  std::function<Result<FlashAttention*>()> flash_;
  KvCache& cache_;
  LayerRopes ropes_;
  bool packed_ = false;
  StepBatch batch_;

  std::vector<LayerConstants> layers_;
  std::vector<PhaseTable> phases_;  // of each RoPE; none without a key mean
  HeadTraits traits_;
  CodecConstants codec_;
  DeviceBuffer rope_steps_;  // [ropes][head_dim / 2]
  std::map<std::vector<int64_t>, DecodeConfig> configs_;

  DeviceBuffer queries_, keys_, values_;  // fp16 rows of a batch
  /// What layers with one window share in a step of the packed kernels.
  struct Schedule {
    DeviceBuffer scratch;
    bool launched = false;  // in this step
  };
  std::map<int64_t, Schedule> schedules_;  // by window
  DeviceBuffer exchange_;                  // what their blocks send each other (decode_params.h)
  // [tokens][kv_heads][D]: unpacked tokens and a chunk's own, or those of windows out of fp16 pages.
  DeviceBuffer prefix_keys_, prefix_values_;
  DeviceBuffer window_lengths_;
  DeviceBuffer part_out_, log_sum_, part_log_sum_;  // of a prefix in several pieces
  DeviceBuffer errors_;                             // [layers] words
  PinnedBuffer host_errors_;
};

}  // namespace blockgtq::cuda
