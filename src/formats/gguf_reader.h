// The parsing half of GgufFile: header, metadata, tensor directory. gguf.cc has the public class.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/formats/gguf.h"

namespace blockgtq {

struct GgufContents {
  int version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;
};

/// Parses a whole file; strings and tensor views point into `bytes`. Messages start with `name`.
Result<GgufContents> ReadGguf(std::span<const std::byte> bytes, const std::string& name);

}  // namespace blockgtq
