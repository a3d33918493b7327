// Builds GGUF files in memory, field by field, so that tests can make each of them wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace blockgtq {

class GgufBytes {
 public:
  template <typename T>
  GgufBytes& Put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  GgufBytes& Raw(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  GgufBytes& Text(std::string_view text) { return Put<uint64_t>(text.size()).Raw(text); }
  GgufBytes& Header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    return Raw("GGUF").Put(version).Put(tensors).Put(keys);
  }
  GgufBytes& Key(std::string_view key, uint32_t kind) { return Text(key).Put(kind); }
  GgufBytes& Tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                    uint64_t offset) {
    Text(name).Put(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) Put(size);
    return Put(type).Put(offset);
  }
  /// Pads to `alignment` and appends `count` bytes of data.
  GgufBytes& Data(size_t count, size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + count);
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace blockgtq
