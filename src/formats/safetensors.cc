// Reading of safetensors files. Source: the format's description (huggingface/safetensors README): u64 header
// length, JSON header, data; tensors cover the data section without overlap or hole.
#include "src/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/formats/byte_cursor.h"
#include "src/formats/mapped_file.h"
#include "src/formats/message.h"
#include "src/formats/safetensors_header.h"

namespace blockgtq {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit

struct DtypeRow {
  const char* name;
  int bytes;
};
constexpr DtypeRow kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
    {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
};

std::string ShapeText(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

struct Placed {
  const std::string* name;
  uint64_t begin, end;
};

// Every byte of the data section belongs to exactly one tensor.
Status CheckCover(std::vector<Placed>& placed, uint64_t data_bytes) {
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Placed& tensor : placed) {
    if (tensor.begin != covered) {
      return Status(ErrorCode::kCorruptFile,
                    fmt::format("tensor '{}': starts at byte {} of the data, {} the tensor before ends at {}",
                                Printable(*tensor.name), Grouped(tensor.begin),
                                tensor.begin < covered ? "an overlap:" : "a hole:", Grouped(covered)));
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    return Status(ErrorCode::kCorruptFile, fmt::format("{} bytes after the last tensor belong to none",
                                                       Grouped(data_bytes - covered)));
  }
  return Status::Ok();
}

// One header entry to a view of its data.
Result<SafetensorsEntry> Place(const SafetensorsHeader::Tensor& tensor, std::span<const std::byte> data) {
  const int element_bytes = SafetensorsDtypeBytes(tensor.dtype);
  if (element_bytes == 0) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("dtype '{}' is not one this build reads", Printable(tensor.dtype)));
  }
  SafetensorsEntry entry;
  entry.dtype = tensor.dtype;
  uint64_t bytes = static_cast<uint64_t>(element_bytes);
  for (const uint64_t size : tensor.shape) {
    if (size > uint64_t{1} << 62 || __builtin_mul_overflow(bytes, size, &bytes)) {
      return Status(ErrorCode::kCorruptFile, "its shape is impossible");
    }
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  const uint64_t begin = tensor.offsets[0], end = tensor.offsets[1];
  if (begin > end) return Status(ErrorCode::kCorruptFile, "data_offsets end before they begin");
  if (end > data.size()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{} bytes past the end of the file; the file is truncated, get it again",
                              Grouped(end - data.size())));
  }
  if (end - begin != bytes) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{} {} needs {} bytes; data_offsets span {}", entry.dtype,
                              ShapeText(entry.shape), Grouped(bytes), Grouped(end - begin)));
  }
  entry.data = data.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  return entry;
}

}  // namespace

int SafetensorsDtypeBytes(std::string_view dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (dtype == row.name) return row.bytes;
  }
  return 0;
}

struct SafetensorsFile::Impl {
  std::string name;
  MappedFile file;  // empty when parsed from memory
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, SafetensorsEntry, std::less<>> tensors;

  Status Read(std::span<const std::byte> bytes);
};

Status SafetensorsFile::Impl::Read(std::span<const std::byte> bytes) {
  ByteCursor cursor(bytes);
  uint64_t header_bytes;
  if (!cursor.Read(&header_bytes)) {
    return Status(ErrorCode::kCorruptFile,
                  "too short for a safetensors file; it is truncated or of another format");
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > cursor.remaining()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("a header of {} bytes is announced, {} follow; the file is truncated or not a"
                              " safetensors file",
                              Grouped(header_bytes), Grouped(cursor.remaining())));
  }
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + cursor.position(),
                              static_cast<size_t>(header_bytes));
  if (!json.starts_with('{')) {
    return Status(ErrorCode::kCorruptFile, "its header does not start with '{'; not a safetensors file");
  }
  BGTQ_ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensorsHeader(json));
  metadata = std::move(header.metadata);
  const auto data = bytes.subspan(cursor.position() + json.size());
  std::vector<Placed> placed;
  for (const auto& [tensor_name, tensor] : header.tensors) {
    Result<SafetensorsEntry> entry = Place(tensor, data);
    if (!entry.ok()) return entry.status().WithContext(fmt::format("tensor '{}'", Printable(tensor_name)));
    const auto added = tensors.emplace(tensor_name, std::move(entry).value()).first;
    placed.push_back({&added->first, tensor.offsets[0], tensor.offsets[1]});
  }
  return CheckCover(placed, data.size());
}

SafetensorsFile::SafetensorsFile() : impl_(std::make_unique<Impl>()) {}
SafetensorsFile::~SafetensorsFile() = default;

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  BGTQ_ASSIGN_OR_RETURN(auto file, Parse(mapped.bytes(), path));
  file->impl_->file = std::move(mapped);  // the mapping's address does not change
  return file;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                                                const std::string& name) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->impl_->name = name;
  BGTQ_RETURN_IF_ERROR(file->impl_->Read(bytes).WithContext(name));
  return file;
}

const std::string& SafetensorsFile::name() const { return impl_->name; }
const std::map<std::string, std::string, std::less<>>& SafetensorsFile::metadata() const {
  return impl_->metadata;
}
const std::map<std::string, SafetensorsEntry, std::less<>>& SafetensorsFile::tensors() const {
  return impl_->tensors;
}

Result<std::span<const std::byte>> SafetensorsFile::Get(std::string_view tensor, std::string_view dtype,
                                                        std::span<const int64_t> shape) const {
  const auto found = impl_->tensors.find(tensor);
  if (found == impl_->tensors.end()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: tensor '{}' is missing", impl_->name, Printable(tensor)));
  }
  const SafetensorsEntry& entry = found->second;
  if (entry.dtype != dtype || !std::ranges::equal(entry.shape, shape)) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: tensor '{}' is {} {}; {} {} is needed", impl_->name, Printable(tensor),
                              entry.dtype, ShapeText(entry.shape), dtype, ShapeText(shape)));
  }
  return entry.data;
}

}  // namespace blockgtq
