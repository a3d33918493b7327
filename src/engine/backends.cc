// See backends.h.
#include "src/engine/backends.h"

#include <fmt/format.h>

#include <array>

#include "src/cpu/cpu_backend.h"

namespace blockgtq {
namespace {

// In order of preference.
constexpr std::array<BackendInfo, 1> kBackends = {{
    {"cpu", cpu::CreateCpuBackend},
}};

}  // namespace

Result<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options) {
  if (options.device.empty()) return kBackends.front().create(options);
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
