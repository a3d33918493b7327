// GGUF v2 / v3 files: metadata and tensor directory, memory-mapped. Every size read from the file is checked.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/tensor_type.h"

namespace blockgtq {

/// A metadata array keeps its element kind; strings view the mapped file.
struct GgufArray {
  std::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string_view>>
      values;  // bools as int64_t
};
/// Integers of every width and bools are int64_t (u64 above 2^63 - 1 is refused), floats double.
using GgufValue = std::variant<int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // GGUF order: shape[0] is contiguous (cols)
  TensorView view;             // rows = product of shape[1..], cols = shape[0]
  int64_t file_offset = 0;
  int64_t bytes = 0;
};

class GgufFile {
 public:
  /// Errors: kNotFound, kIo, kCorruptFile, kUnsupported (version, tensor type), each naming the file and the
  /// field.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path);
  /// The same over bytes in memory (kept by the caller); `name` stands for the path in messages.
  static Result<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes, const std::string& name);
  ~GgufFile();

  const std::string& name() const;
  int version() const;
  const std::map<std::string, GgufValue, std::less<>>& metadata() const;
  const std::vector<GgufTensor>& tensors() const;
  /// nullptr when absent.
  const GgufTensor* FindTensor(std::string_view name) const;
  const GgufValue* FindValue(std::string_view key) const;

  // Typed access. Errors: kCorruptFile naming the file, the key and what was found instead; Or: fallback when
  // absent.
  Result<int64_t> GetInt(std::string_view key) const;
  Result<double> GetFloat(std::string_view key) const;  // accepts integers
  Result<std::string_view> GetString(std::string_view key) const;
  Result<std::span<const std::string_view>> GetStrings(std::string_view key) const;
  Result<std::span<const int64_t>> GetInts(std::string_view key) const;
  Result<std::span<const double>> GetFloats(std::string_view key) const;
  Result<int64_t> GetIntOr(std::string_view key, int64_t fallback) const;
  Result<double> GetFloatOr(std::string_view key, double fallback) const;
  Result<std::string_view> GetStringOr(std::string_view key, std::string_view fallback) const;
  Result<bool> GetBoolOr(std::string_view key, bool fallback) const;

 private:
  GgufFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockgtq
