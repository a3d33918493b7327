// GGUF parsing: any bytes give a file or one Status, and every tensor of a file lies inside it.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "src/formats/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = blockgtq::GgufFile::Parse(bytes, "fuzz");
  if (!file.ok()) {
    if (file.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const blockgtq::GgufTensor& tensor : (*file)->tensors()) {
    // The last row is the one that could pass the end; wide rows would only slow the search down.
    if (tensor.view.cols > 1 << 16) continue;
    std::vector<float> row(static_cast<size_t>(tensor.view.cols));
    blockgtq::DequantizeRow(tensor.view, 0, row.data());
    blockgtq::DequantizeRow(tensor.view, tensor.view.rows - 1, row.data());
    if ((*file)->FindTensor(tensor.name) != &tensor) std::abort();
  }
  for (const auto& [key, value] : (*file)->metadata()) {
    (void)(*file)->GetInt(key);
    (void)(*file)->GetStrings(key);
    (void)(*file)->GetBoolOr(key, false);
  }
  return 0;
}
