// See backends.h.
#include "src/engine/backends.h"

#include <fmt/format.h>

#include <array>

#include "src/cpu/cpu_backend.h"
#include "src/cpu/host_attention.h"
#ifdef BGTQ_HAVE_CUDA
#include "src/cuda/cuda_backend.h"
#endif

namespace blockgtq {
namespace {

// In order of preference.
constexpr auto kBackends = std::to_array<BackendInfo>({
#ifdef BGTQ_HAVE_CUDA
    {"cuda", cuda::CreateCudaBackend},
#endif
    {"cpu", cpu::CreateCpuBackend},
});

// The first backend that works here.
Result<std::unique_ptr<Backend>> CreatePreferred(BackendOptions options) {
  const auto create = [&](const BackendInfo& backend) {
    options.device = backend.name;
    return backend.create(options);
  };
  Result<std::unique_ptr<Backend>> created = create(kBackends.front());
  for (size_t i = 1; i < kBackends.size(); ++i) {
    if (created.ok() || created.status().code() != ErrorCode::kUnsupported) break;
    created = create(kBackends[i]);
  }
  return created;
}

}  // namespace

Result<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& wanted) {
  BackendOptions options = wanted;
  if (options.host_attention == nullptr) options.host_attention = cpu::CreateHostAttention;
  if (options.device.empty()) return CreatePreferred(options);
  const std::string kind = options.device.substr(0, options.device.find(':'));
  std::string known;
  for (const BackendInfo& backend : kBackends) {
    if (backend.name == kind && (kind != "cpu" || options.device == kind)) return backend.create(options);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", backend.name);
  }
  return Status(
      ErrorCode::kUnsupported,
      fmt::format("--device {}: not available in this build (available: {})", options.device, known));
}

}  // namespace blockgtq
