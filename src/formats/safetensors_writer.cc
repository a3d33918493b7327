// WriteSafetensors: header, padding, data, written atomically.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "src/formats/atomic_file.h"
#include "src/formats/message.h"
#include "src/formats/safetensors.h"

namespace blockgtq {
namespace {

constexpr size_t kDataAlignment = 64;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // readers refuse longer headers

/// The bytes that a tensor of this name, dtype and shape has. Errors: kInvalidArgument.
Result<uint64_t> CheckedBytes(const SafetensorsShape& tensor) {
  const auto error = [&](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("tensor '{}': {}", Printable(tensor.name), what));
  };
  if (tensor.name.empty() || tensor.name == "__metadata__") return error("not a possible name");
  uint64_t bytes = static_cast<uint64_t>(SafetensorsDtypeBytes(tensor.dtype));
  if (bytes == 0) return error(fmt::format("dtype '{}' is not one the format has", tensor.dtype));
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      return error("its shape is impossible");
    }
  }
  return bytes;
}

Status WrongSize(const SafetensorsShape& tensor, uint64_t needed, uint64_t given) {
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("tensor '{}': its shape needs {} bytes, {} are given", Printable(tensor.name),
                            Grouped(needed), Grouped(given)));
}

// Indices in file order: a wider dtype first keeps every tensor aligned to its element without gaps.
std::vector<size_t> FileOrder(std::span<const SafetensorsShape> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SafetensorsDtypeBytes(tensors[a].dtype) > SafetensorsDtypeBytes(tensors[b].dtype);
  });
  return order;
}

Result<std::string> Header(const std::map<std::string, std::string, std::less<>>& metadata,
                           std::span<const SafetensorsShape> tensors, std::span<const uint64_t> bytes,
                           std::span<const size_t> order) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    auto& object = json["__metadata__"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) object[key] = value;
  }
  // ordered_json finds keys linearly, so entries are appended unseen: names are known to be unique.
  auto& entries = json.get_ref<nlohmann::ordered_json::object_t&>();
  uint64_t offset = 0;
  for (const size_t i : order) {
    const SafetensorsShape& tensor = tensors[i];
    nlohmann::ordered_json entry;
    entry["dtype"] = tensor.dtype;
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, offset + bytes[i]};
    entries.push_back({tensor.name, std::move(entry)});
    offset += bytes[i];
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception&) {
    return Status(ErrorCode::kInvalidArgument, "a tensor's name or the metadata is not UTF-8");
  }
  const size_t end = sizeof(uint64_t) + text.size();
  text.append((end + kDataAlignment - 1) / kDataAlignment * kDataAlignment - end, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("the header would have {} bytes; {} are allowed",
                                                           Grouped(text.size()), Grouped(kMaxHeaderBytes)));
  }
  return text;
}

}  // namespace

Status WriteSafetensors(const std::string& path,
                        const std::map<std::string, std::string, std::less<>>& metadata,
                        std::span<const SafetensorsTensor> tensors) {
  std::vector<SafetensorsShape> shapes;
  for (const SafetensorsTensor& tensor : tensors) {
    shapes.push_back({tensor.name, tensor.dtype, tensor.shape});
    const Result<uint64_t> bytes = CheckedBytes(shapes.back());
    if (!bytes.ok()) return bytes.status().WithContext(path);
    if (*bytes != tensor.data.size())
      return WrongSize(shapes.back(), *bytes, tensor.data.size()).WithContext(path);
  }
  return WriteSafetensors(path, metadata, shapes,
                          [&](size_t i, const ByteSink& sink) { return sink(tensors[i].data); });
}

Status WriteSafetensors(const std::string& path,
                        const std::map<std::string, std::string, std::less<>>& metadata,
                        std::span<const SafetensorsShape> tensors,
                        const std::function<Status(size_t tensor, const ByteSink& sink)>& make) {
  std::set<std::string_view> names;
  std::vector<uint64_t> bytes;
  for (const SafetensorsShape& tensor : tensors) {
    Result<uint64_t> checked = CheckedBytes(tensor);
    if (!checked.ok()) return checked.status().WithContext(path);
    bytes.push_back(*checked);
    if (!names.insert(tensor.name).second) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}: tensor '{}' is given twice", path, Printable(tensor.name)));
    }
  }
  const std::vector<size_t> order = FileOrder(tensors);
  Result<std::string> header = Header(metadata, tensors, bytes, order);
  if (!header.ok()) return header.status().WithContext(path);

  BGTQ_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  const uint64_t header_bytes = header->size();
  BGTQ_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(&header_bytes, 1))));
  BGTQ_RETURN_IF_ERROR(file.Write(std::as_bytes(std::span(*header))));
  for (const size_t i : order) {
    uint64_t given = 0;
    BGTQ_RETURN_IF_ERROR(make(i, [&](std::span<const std::byte> part) {
      given += part.size();
      return file.Write(part);
    }));
    if (given != bytes[i]) return WrongSize(tensors[i], bytes[i], given).WithContext(path);
  }
  return file.Commit();
}

}  // namespace blockgtq
