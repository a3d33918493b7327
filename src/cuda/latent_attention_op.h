// Attention over a cache of latents on the GPU: rotates and stores new keys, encodes pages that leave the
// window, and attends, all by own kernels: decoded tokens, strict rows and prompt chunks, over packed and
// over fp16 caches.
#pragma once

#include <memory>
#include <vector>

#include "src/cuda/device.h"
#include "src/cuda/error_words.h"
#include "src/cuda/latent_constants.h"
#include "src/cuda/latent_store.h"
#include "src/cuda/layer_attention.h"

namespace blockgtq::cuda {

class LatentAttentionOp : public LayerAttention {
 public:
  /// Errors: kUnsupported naming what of the cache or plan has no kernel; kOutOfMemory.
  static Result<std::unique_ptr<LatentAttentionOp>> Create(Device& device, KvCache& cache,
                                                           const RopeConfig& rope);

  Status BeginStep(const StepInput& input) override { return batch_.Build(input); }
  const StepBatch& batch() const override { return batch_; }
  StepShape shape() const override;
  Status Run(const AttentionCall& call, const AttentionRows& rows) override;
  Status EndStep() override;
  Status TakeErrors() override { return errors_.Take(); }
  Status DropErrors() override { return errors_.Clear(); }

 private:
  LatentAttentionOp(Device& device, KvCache& cache, const RopeConfig& rope);
  Status UploadConstants();
  Status ReserveRows(const AttentionCall& call);
  Status Observe(const AttentionCall& call, const AttentionRows& rows);
  LatentTiles Tiles(int layer) const;
  Status Store(const AttentionCall& call, const AttentionRows& rows, const Segment& s, uint16_t* keys);
  Status Encode(const Segment& s, int first_layer, int layers, const uint16_t* keys, int64_t first_row);
  Status AttendRows(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status AttendChunk(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  Status AttendPages(const AttentionCall& call, const AttentionRows& rows, const Segment& s);
  /// What all three have in common.
  LatentParams Params(const AttentionCall& call, const Segment& s) const;
  /// Attends for all rows of a segment. params: of its first row; code_tiles, exact_tiles: the most of each
  /// kind, 0: none, which choose the splits.
  Status Attend(LatentParams params, const Segment& s, int64_t code_tiles, int64_t exact_tiles,
                uint16_t* out);

  Device& device_;
  KvCache& cache_;
  RopeConfig rope_;
  bool packed_ = false;
  StepBatch batch_;

  std::vector<LatentConstants> layers_;
  DeviceBuffer codecs_;  // [layers]
  int most_groups_ = 0, most_group_units_ = 0, most_units_ = 0;
  bool has_mean_ = false;
  DeviceBuffer rope_steps_;
  ErrorWords errors_;

  DeviceBuffer queries_, query_scales_, query_offsets_, keys_;  // rows of a batch
  DeviceBuffer exact_rows_;   // a chunk's, and those before it in its window
  DeviceBuffer scratch_;      // of the attention kernels
  DeviceBuffer coordinates_;  // of the encoder
};

}  // namespace blockgtq::cuda
