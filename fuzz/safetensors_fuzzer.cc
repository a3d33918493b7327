// Safetensors parsing: any bytes give a file or one Status, and the tensors cover the data exactly.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = blockgtq::SafetensorsFile::Parse(bytes, "fuzz");
  if (!file.ok()) {
    if (file.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  size_t total = 0;
  unsigned sum = 0;
  for (const auto& [name, entry] : (*file)->tensors()) {
    total += entry.data.size();
    for (const std::byte b : entry.data) sum += static_cast<unsigned>(b);
    if (!(*file)->Get(name, entry.dtype, entry.shape).ok()) std::abort();
  }
  if (total > size || sum > 255u * size) std::abort();
  return 0;
}
