// The CUDA backend: fp16 weights on the device, fp32 residuals and products, packed attention; steps that
// decode run as CUDA graphs.
#pragma once

#include <memory>

#include "src/backend/backend.h"

namespace blockgtq::cuda {

/// options.device: "cuda" (device 0) or "cuda:N"; options.threads: of the host, to widen weights and for
/// attention over simulated caches (0: one a core). Errors: kInvalidArgument for another device name;
/// kUnsupported when the device is absent or has no kernels here.
Result<std::unique_ptr<Backend>> CreateCudaBackend(const BackendOptions& options);

}  // namespace blockgtq::cuda
