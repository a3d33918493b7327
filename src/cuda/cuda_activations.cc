// See cuda_activations.h.
#include "src/cuda/cuda_activations.h"

namespace blockgtq::cuda {
namespace {
constexpr const char* kWhat = "activations of a batch";
}  // namespace

Status CudaActivations::BecomeFull() {
  form_ = Form::kFull;
  scale_ = 1;
  return device_.Reserve(full_, rows_ * cols_ * static_cast<int64_t>(sizeof(float)), kWhat);
}

Status CudaActivations::BecomeHalves(bool with_low, float scale) {
  form_ = Form::kHalves;
  has_low_ = with_low;
  scale_ = scale;
  const int64_t bytes = rows_ * cols_ * static_cast<int64_t>(sizeof(uint16_t));
  BGTQ_RETURN_IF_ERROR(device_.Reserve(high_, bytes, kWhat));
  return with_low ? device_.Reserve(low_, bytes, kWhat) : Status::Ok();
}

}  // namespace blockgtq::cuda
