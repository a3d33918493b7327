// The constants of a layer of latents on the device: what BuildLatentTable makes of a plan.
#pragma once

#include "src/cuda/device_memory.h"
#include "src/cuda/latent_attention.h"
#include "src/cuda/latent_encode.h"

namespace blockgtq::cuda {

/// One layer's LatentTable on the device.
class LatentConstants {
 public:
  static Result<LatentConstants> Upload(LatentTable table);
  const LatentTable& table() const { return table_; }
  const float* mean() const { return mean_.As<float>(); }
  void Bind(LatentParams& params) const;
  /// Offsets are the caller's.
  LatentCodec Codec() const;

 private:
  LatentTable table_;  // sizes and scales; its arrays are on the device
  int32_t units_count_ = 0, groups_count_ = 0, mean_units_count_ = 0;
  DeviceBuffer units_, groups_, key_fragments_, key_low_fragments_, mean_, mean_units_, query_fragments_,
      unrotate_fragments_;
};

}  // namespace blockgtq::cuda
