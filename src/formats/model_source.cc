// See model_source.h.
#include "src/formats/model_source.h"

#include <fmt/format.h>

#include "src/formats/message.h"

namespace blockgtq {

Result<TensorView> ModelTensor::Rows(int64_t first, int64_t count) const {
  if (first < 0 || count < 1 || first > rows || count > rows - first) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("tensor {}: {} rows from {} are needed; it has {}",
                                                           stored_name, count, first, rows));
  }
  int64_t begin = 0;  // of the part
  for (const TensorView& part : parts) {
    if (first < begin + part.rows) {
      if (first + count > begin + part.rows) break;
      return TensorView{part.type, part.data + (first - begin) * part.row_bytes(), count, cols};
    }
    begin += part.rows;
  }
  return Status(ErrorCode::kUnsupported,
                fmt::format("tensor {}: rows {} to {} lie in more than one stored tensor", stored_name, first,
                            first + count));
}

Result<TensorView> ModelTensor::Elements(int64_t first, int64_t count) const {
  if (first < 0 || count < 1 || first > cols || count > cols - first) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("tensor {}: {} elements from {} are needed; it has {}", stored_name, count, first, cols));
  }
  const TensorTypeInfo& info = GetTensorType(type());
  if (rows != 1 || info.block_elements != 1) {
    return Status(ErrorCode::kUnsupported,
                  fmt::format("tensor {}: part of a {} {} is needed; a vector of F32, F16 or BF16 can be cut",
                              stored_name, info.name, ShapeText(shape)));
  }
  return TensorView{info.type, parts.front().data + first * info.block_bytes, 1, count};
}

Status ModelSource::IndexTensors() {
  for (const ModelTensor& tensor : tensors_) {
    const auto [place, added] = by_name_.emplace(tensor.name, &tensor);
    if (added) continue;
    return Status(
        ErrorCode::kCorruptFile,
        fmt::format("{}: tensors {} and {} are both {}", name_, Printable(place->second->stored_name),
                    Printable(tensor.stored_name), Printable(tensor.name)));
  }
  return Status::Ok();
}

const ModelTensor* ModelSource::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const ModelTensor* ModelSource::Take(std::string_view name) const {
  const ModelTensor* tensor = Find(name);
  if (tensor != nullptr) taken_.insert(tensor);
  return tensor;
}

Status ModelSource::CheckAllTaken() const {
  for (const ModelTensor& tensor : tensors_) {
    if (taken_.contains(&tensor)) continue;
    return Status(
        ErrorCode::kUnsupported,
        fmt::format("{}: tensor {} is not one that a {} has; this variant of the architecture is not "
                    "supported",
                    name_, Printable(tensor.stored_name), architecture_));
  }
  return Status::Ok();
}

std::string ShapeText(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace blockgtq
