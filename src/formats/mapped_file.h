// A regular file mapped read-only into memory, for as long as the object lives.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "blockgtq/status.h"

namespace blockgtq {

/// Moves hand the mapping over. A file that another program truncates while it is mapped raises SIGBUS on
/// access, as with every mapped file.
class MappedFile {
 public:
  /// Errors: kNotFound (no such file), kInvalidArgument (not a regular file), kIo with errno's text, or for a
  /// link to nothing.
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace blockgtq
