// Activations on the GPU. A matrix is held in the form its reader wants: products write fp32, what feeds a
// product is fp16, with a low half where Precision::kFloat asks for one (matmul_item.h).
#pragma once

#include "src/backend/backend.h"
#include "src/cuda/device.h"

namespace blockgtq::cuda {

class CudaActivations : public Activations {
 public:
  /// Memory is taken when a form is first written: a batch's fp32 and fp16 forms are rarely both used.
  CudaActivations(Device& device, int64_t rows, int64_t cols) : Activations(rows, cols), device_(device) {}
  ~CudaActivations() override { device_.NoteMoved(); }

  float* full() const { return full_.As<float>(); }        // [rows, cols]
  uint16_t* high() const { return high_.As<uint16_t>(); }  // fp16 [rows, cols]
  uint16_t* low() const { return low_.As<uint16_t>(); }    // the same shape

  /// Makes memory for the form that is about to be written, and notes it as the matrix's value. scale: the
  /// value is that much larger than its halves. Errors: kOutOfMemory.
  Status BecomeFull();
  Status BecomeHalves(bool with_low, float scale = 1);

  bool is_full() const { return form_ == Form::kFull; }
  bool is_halves() const { return form_ == Form::kHalves; }
  bool has_low() const { return has_low_; }
  float scale() const { return scale_; }

 private:
  enum class Form { kNone, kFull, kHalves };
  Device& device_;
  DeviceBuffer full_, high_, low_;
  Form form_ = Form::kNone;
  bool has_low_ = false;
  float scale_ = 1;
};

}  // namespace blockgtq::cuda
