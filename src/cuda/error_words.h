// A word a layer on the device, the smallest position with a number that no kernel can go on with, and its
// way to the host.
#pragma once

#include <cstdint>

#include "src/cuda/device.h"

namespace blockgtq::cuda {

class ErrorWords {
 public:
  /// Errors: kOutOfMemory, a CUDA error.
  static Result<ErrorWords> Create(int layers);
  int32_t* of_layer(int layer) const { return device_words_.As<int32_t>() + layer; }
  /// Starts the copy to the host.
  Status Send(CUstream_st* stream);
  /// What the last copy brought, once the stream has been waited for. Errors: kNonFinite naming layer and
  /// position, once.
  Status Take();
  /// Forgets what is in them. No kernel that writes them and no copy of them may be under way.
  Status Clear();

 private:
  int layers_ = 0;
  DeviceBuffer device_words_;
  PinnedBuffer host_words_;
};

}  // namespace blockgtq::cuda
