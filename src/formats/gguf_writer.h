// Writes GGUF version 3 files, tensor by tensor, so that no model needs to be in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "blockgtq/status.h"
#include "src/core/tensor_type.h"

namespace blockgtq {

/// The kinds that GGUF files of models use.
using GgufWriteValue = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>,
                                    std::vector<bool>, std::vector<std::string>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufWriteValue>>;

struct GgufWriteTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;  // outermost first; 1 to 4 dims; the last a multiple of the type's block
  int64_t bytes() const;
};

/// Receives a tensor's bytes in order, in pieces of any size.
using GgufSink = std::function<Status(std::span<const std::byte>)>;

/// Written atomically. fill(i, sink) gives the bytes of tensors[i]. Errors: kInvalidArgument (shapes, a fill
/// that gives another number of bytes), kIo, those of fill.
Status WriteGguf(const std::string& path, const GgufMetadata& metadata,
                 std::span<const GgufWriteTensor> tensors,
                 const std::function<Status(size_t index, const GgufSink& sink)>& fill);

}  // namespace blockgtq
