// Reads little-endian scalars and strings from a span of bytes, refusing to pass its end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace blockgtq {

static_assert(std::endian::native == std::endian::little, "files are little-endian and read in place");

class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  /// False, with nothing consumed, when fewer than sizeof(T) bytes are left.
  template <typename T>
  requires std::is_arithmetic_v<T>
  [[nodiscard]] bool Read(T* out) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(out, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  /// A u64 length and as many bytes, viewed in place.
  [[nodiscard]] bool ReadString(std::string_view* out) {
    uint64_t length;
    if (!Read(&length)) return false;
    if (length > remaining()) {
      position_ -= sizeof(length);
      return false;
    }
    *out = {reinterpret_cast<const char*>(bytes_.data() + position_), static_cast<size_t>(length)};
    position_ += static_cast<size_t>(length);
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace blockgtq
