// See error_words.h.
#include "src/cuda/error_words.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "src/cuda/launch.cuh"
#include "src/cuda/layer_constants.h"

namespace blockgtq::cuda {
namespace {
constexpr int32_t kNoError = std::numeric_limits<int32_t>::max();
}  // namespace

Result<ErrorWords> ErrorWords::Create(int layers) {
  const std::vector<int32_t> none(static_cast<size_t>(layers), kNoError);
  ErrorWords words;
  words.layers_ = layers;
  BGTQ_ASSIGN_OR_RETURN(words.device_words_, ToDevice(none, "error words"));
  BGTQ_ASSIGN_OR_RETURN(words.host_words_,
                        PinnedBuffer::Allocate(words.device_words_.bytes(), "error words"));
  std::copy(none.begin(), none.end(), words.host_words_.As<int32_t>());
  return words;
}

Status ErrorWords::Send(CUstream_st* stream) {
  return CudaStatus(
      cudaMemcpyAsync(host_words_.data(), device_words_.data(), static_cast<size_t>(device_words_.bytes()),
                      cudaMemcpyDeviceToHost, stream),
      "reading error words");
}

Status ErrorWords::Clear() {
  int32_t* words = host_words_.As<int32_t>();
  std::fill_n(words, layers_, kNoError);
  return CudaStatus(cudaMemcpy(device_words_.data(), words, static_cast<size_t>(device_words_.bytes()),
                               cudaMemcpyHostToDevice),
                    "clearing error words");
}

Status ErrorWords::Take() {
  const int32_t* words = host_words_.As<int32_t>();
  for (int layer = 0; layer < layers_; ++layer) {
    const int32_t position = words[layer];
    if (position == kNoError) continue;
    BGTQ_RETURN_IF_ERROR(Clear());
    return Status(
        ErrorCode::kNonFinite,
        fmt::format("layer {}: a query, key or value at position {} is NaN, infinite or beyond fp16; the "
                    "model file or its numerics are damaged",
                    layer, position));
  }
  return Status::Ok();
}

}  // namespace blockgtq::cuda
