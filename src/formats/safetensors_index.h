// model.safetensors.index.json: which file of a sharded model holds which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

struct SafetensorsIndex {
  std::map<std::string, std::string, std::less<>> file_of;  // tensor to file
  std::vector<std::string> files;                           // each once, sorted
};

/// Files are plain names ending in .safetensors: a path out of the folder is refused. Errors: kCorruptFile,
/// starting with `name`.
Result<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json, const std::string& name);

}  // namespace blockgtq
