// Loading of moments: any bytes give moments whose sizes agree or one Status.
#include <cstdint>
#include <cstdlib>

#include "src/formats/moments_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto moments = blockgtq::ParseMoments(bytes, "fuzz");
  if (!moments.ok()) {
    if (moments.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  if (moments->tokens() < 1 || moments->tokens() > moments->seen ||
      moments->seen > blockgtq::kMaxMomentsTokens) {
    std::abort();
  }
  const size_t dim = static_cast<size_t>(moments->model.head_dim);
  for (const blockgtq::HeadCalibration& head : moments->heads) {
    if (head.statistics.key_mean.size() != dim || head.statistics.query_energy.size() != dim / 2)
      std::abort();
    if (head.keys.empty() || head.keys.size() % dim != 0) std::abort();
  }
  return 0;
}
