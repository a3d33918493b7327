// Launching kernels with errors as Status.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "blockgtq/status.h"

namespace blockgtq::cuda {

inline Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported;
  return Status(code, std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

/// Whether the current device runs the code that was compiled for sm_90: its kernels alone wait for the
/// kernel ahead of them themselves, and form clusters. A GPU of compute capability 8 runs that of sm_80.
bool HasSm90Code();

/// Launches `kernel`. early: where there is sm_90 code, it may start before the kernel ahead of it in the
/// stream has finished (it then waits itself, with WaitForPreviousKernel, before it reads what that one
/// wrote).
template <typename... Parameters, typename... Arguments>
Status Launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
              size_t shared_bytes, bool early, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = early && HasSm90Code() ? 1 : 0;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace blockgtq::cuda
