// Attention over a cache on the GPU: rotates and stores new tokens, encodes pages that leave the window, and
// attends: decoded tokens and strict rows by the packed kernels, prompt chunks by a library kernel over keys
// and values unpacked into a bounded scratch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "src/backend/backend.h"
#include "src/cuda/decode_attention.h"
#include "src/cuda/device.h"
#include "src/cuda/error_words.h"
#include "src/cuda/flash_attention.h"
#include "src/cuda/layer_attention.h"
#include "src/cuda/layer_constants.h"

namespace blockgtq::cuda {

class AttentionOp : public LayerAttention {
 public:
  /// flash: gives the library kernels, loaded when first asked for. Errors: kUnsupported naming what of the
  /// cache or plan has no kernel; kOutOfMemory.
  static Result<std::unique_ptr<AttentionOp>> Create(Device& device,
                                                     std::function<Result<FlashAttention*>()> flash,
                                                     KvCache& cache, const LayerRopes& ropes);

  Status BeginStep(const StepInput& input) override;
  const StepBatch& batch() const override { return batch_; }
  StepShape shape() const override;
  Status Run(const AttentionCall& call, const AttentionRows& rows) override;
  Status EndStep() override;
  Status TakeErrors() override;
  Status DropErrors() override;

 private:
  AttentionOp(Device& device, std::function<Result<FlashAttention*>()> flash, KvCache& cache,
              const LayerRopes& ropes);
  Status UploadConstants();
  Status ReserveRows(const AttentionCall& call);
  Status Observe(const AttentionCall& call, const AttentionRows& rows);
  RopeStoreCall StoreCall(const AttentionCall& call, const AttentionRows& rows, const Segment& s) const;
  Status Store(const AttentionCall& call, const AttentionRows& rows, const Segment& s, uint16_t* keys,
               uint16_t* values, int64_t first_token_row);
  Status Encode(const Segment& s, int first_layer, int layers, const uint16_t* keys, const uint16_t* values);
  Status AttendRows(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status AttendChunk(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status Unpack(const Segment& s, int layer, int64_t first, int64_t count, uint16_t* keys, uint16_t* values);
  Status AttendHalf(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status ReservePrefix(int64_t tokens);
  Status ClearPrefix();
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
  ErrorWords errors_;
};

}  // namespace blockgtq::cuda
