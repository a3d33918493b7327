// The JSON header of a safetensors file, parsed as a stream: no document tree, so no depth or size of a
// hostile header costs more than its bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

struct SafetensorsHeader {
  struct Tensor {
    std::string dtype;
    std::vector<uint64_t> shape;
    std::vector<uint64_t> offsets;  // begin and end in the data section; other counts are an error
    bool has_dtype = false, has_shape = false, has_offsets = false;
  };
  std::map<std::string, std::string, std::less<>> metadata;
  std::map<std::string, Tensor, std::less<>> tensors;
};

/// Checks the header's form only (each tensor has its three fields, once, of the right JSON types); sizes and
/// offsets are the caller's. Errors: kCorruptFile without the file's name.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json);

}  // namespace blockgtq
