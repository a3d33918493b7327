// The safetensors container: u64 header length, JSON header (with __metadata__), data. Used for plans,
// sessions, logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

/// dtype names are the format's: "F32", "F16", "BF16", "F64", "I64", "I32", "U8", ...
struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // any alignment: a file decides its own header length
};

class SafetensorsFile {
 public:
  /// Memory-maps and checks: header size and JSON, dtype sizes, offsets inside the file, no overlap, no hole.
  /// Errors: kNotFound, kIo, kCorruptFile, kUnsupported (dtype).
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  static Result<std::unique_ptr<SafetensorsFile>> Parse(std::span<const std::byte> bytes,
                                                        const std::string& name);
  ~SafetensorsFile();

  const std::string& name() const;
  const std::map<std::string, std::string, std::less<>>& metadata() const;
  const std::map<std::string, SafetensorsEntry, std::less<>>& tensors() const;
  /// kCorruptFile naming file and tensor when absent or of another dtype or shape.
  Result<std::span<const std::byte>> Get(std::string_view tensor, std::string_view dtype,
                                         std::span<const int64_t> shape) const;

 private:
  SafetensorsFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Elements' size of a dtype name, or 0 when it is none of BOOL, U8, I8, F8_E4M3, F8_E5M2, U16, I16, F16,
/// BF16, U32, I32, F32, U64, I64, F64.
int SafetensorsDtypeBytes(std::string_view dtype);

struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

/// Writes a file atomically: a temporary beside `path`, fsync, rename. The data section starts 64-byte
/// aligned in the file; tensors follow without gaps (the format forbids holes), widest dtype first and
/// otherwise in the given order, so each is aligned to its element. Errors: kInvalidArgument (names, dtypes,
/// sizes), kIo with errno's text.
Status WriteSafetensors(const std::string& path,
                        const std::map<std::string, std::string, std::less<>>& metadata,
                        std::span<const SafetensorsTensor> tensors);

/// A tensor whose bytes are made while the file is written.
struct SafetensorsShape {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};
using ByteSink = std::function<Status(std::span<const std::byte>)>;

/// The same, without holding the tensors: make(i, sink) passes the bytes of tensors[i] to the sink, in as
/// many pieces as it likes. Called once a tensor, in the file's order. Errors: also those of make, and
/// kInvalidArgument when a tensor gets another number of bytes than its shape needs.
Status WriteSafetensors(const std::string& path,
                        const std::map<std::string, std::string, std::less<>>& metadata,
                        std::span<const SafetensorsShape> tensors,
                        const std::function<Status(size_t tensor, const ByteSink& sink)>& make);

}  // namespace blockgtq
