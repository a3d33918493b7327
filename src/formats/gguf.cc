// GgufFile: owns the mapping, finds tensors and values, and gives typed access. gguf_reader.cc parses.
#include "src/formats/gguf.h"

#include <fmt/format.h>

#include <utility>

#include "src/formats/gguf_reader.h"
#include "src/formats/mapped_file.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

const char* Describe(const GgufValue& value) {
  switch (value.index()) {
    case 0:
      return "an integer";
    case 1:
      return "a float";
    case 2:
      return "a bool";
    case 3:
      return "a string";
    default:
      break;
  }
  switch (std::get<GgufArray>(value).values.index()) {
    case 0:
      return "an array of integers";
    case 1:
      return "an array of floats";
    default:
      return "an array of strings";
  }
}

}  // namespace

struct GgufFile::Impl {
  std::string name;
  MappedFile file;  // empty when parsed from memory
  GgufContents contents;
  std::map<std::string_view, const GgufTensor*> by_name;  // ordered: no hash for a hostile file to collide

  Status Mismatch(std::string_view key, const GgufValue* found, const char* wanted) const {
    if (found == nullptr) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("{}: metadata key '{}' is missing ({} is needed)", name, key, wanted));
    }
    return Status(ErrorCode::kCorruptFile, fmt::format("{}: metadata key '{}' is {}; {} is needed", name, key,
                                                       Describe(*found), wanted));
  }
};

GgufFile::GgufFile() : impl_(std::make_unique<Impl>()) {}
GgufFile::~GgufFile() = default;

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  BGTQ_ASSIGN_OR_RETURN(auto file, Parse(mapped.bytes(), path));
  file->impl_->file = std::move(mapped);  // the mapping's address does not change
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes, const std::string& name) {
  std::unique_ptr<GgufFile> file(new GgufFile);
  Impl& impl = *file->impl_;
  impl.name = name;
  BGTQ_ASSIGN_OR_RETURN(impl.contents, ReadGguf(bytes, name));
  for (const GgufTensor& tensor : impl.contents.tensors) {
    if (!impl.by_name.emplace(tensor.name, &tensor).second) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("{}: tensor {}: occurs twice", name, Printable(tensor.name)));
    }
  }
  return file;
}

const std::string& GgufFile::name() const { return impl_->name; }
int GgufFile::version() const { return impl_->contents.version; }
const std::map<std::string, GgufValue, std::less<>>& GgufFile::metadata() const {
  return impl_->contents.metadata;
}
const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->contents.tensors; }

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  return found == impl_->by_name.end() ? nullptr : found->second;
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto found = impl_->contents.metadata.find(key);
  return found == impl_->contents.metadata.end() ? nullptr : &found->second;
}

Result<int64_t> GgufFile::GetInt(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value != nullptr) {
    if (const auto* number = std::get_if<int64_t>(value)) return *number;
  }
  return impl_->Mismatch(key, value, "an integer");
}

Result<double> GgufFile::GetFloat(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value != nullptr) {
    if (const auto* number = std::get_if<double>(value)) return *number;
    if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  }
  return impl_->Mismatch(key, value, "a number");
}

Result<std::string_view> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (value != nullptr) {
    if (const auto* text = std::get_if<std::string_view>(value)) return *text;
  }
  return impl_->Mismatch(key, value, "a string");
}

namespace {

// The elements of an array value of element type T, or nullptr.
template <typename T>
const std::vector<T>* FindElements(const GgufValue* value) {
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  return array == nullptr ? nullptr : std::get_if<std::vector<T>>(&array->values);
}

}  // namespace

Result<std::span<const std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (const auto* strings = FindElements<std::string_view>(value)) {
    return std::span<const std::string_view>(*strings);
  }
  return impl_->Mismatch(key, value, "an array of strings");
}

Result<std::span<const int64_t>> GgufFile::GetInts(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (const auto* integers = FindElements<int64_t>(value)) return std::span<const int64_t>(*integers);
  return impl_->Mismatch(key, value, "an array of integers");
}

Result<std::span<const double>> GgufFile::GetFloats(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (const auto* floats = FindElements<double>(value)) return std::span<const double>(*floats);
  return impl_->Mismatch(key, value, "an array of floats");
}

Result<int64_t> GgufFile::GetIntOr(std::string_view key, int64_t fallback) const {
  return FindValue(key) == nullptr ? Result<int64_t>(fallback) : GetInt(key);
}

Result<double> GgufFile::GetFloatOr(std::string_view key, double fallback) const {
  return FindValue(key) == nullptr ? Result<double>(fallback) : GetFloat(key);
}

Result<std::string_view> GgufFile::GetStringOr(std::string_view key, std::string_view fallback) const {
  return FindValue(key) == nullptr ? Result<std::string_view>(fallback) : GetString(key);
}

Result<bool> GgufFile::GetBoolOr(std::string_view key, bool fallback) const {
  const GgufValue* value = FindValue(key);
  if (value == nullptr) return fallback;
  if (const bool* flag = std::get_if<bool>(value)) return *flag;
  return impl_->Mismatch(key, value, "a bool");
}

}  // namespace blockgtq
