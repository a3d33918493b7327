// See safetensors_index.h.
#include "src/formats/safetensors_index.h"

#include <fmt/format.h>

#include <set>

#include "src/formats/json_fields.h"
#include "src/formats/message.h"

namespace blockgtq {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxDepth = 8;
constexpr size_t kMaxFiles = 4096;

bool IsPlainName(std::string_view file) {
  return file.ends_with(".safetensors") && !file.starts_with('.') &&
         file.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

Result<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json, const std::string& name) {
  const auto corrupt = [&](const std::string& what) {
    return Status(ErrorCode::kCorruptFile, fmt::format("{}: {}", name, what));
  };
  const Result<nlohmann::json> parsed = ParseBoundedJson(json, kMaxBytes, kMaxDepth);
  if (!parsed.ok()) return parsed.status().WithContext(name);
  if (!parsed->is_object()) return corrupt("is not a JSON object");
  const auto map = parsed->find("weight_map");
  if (map == parsed->end() || !map->is_object() || map->empty()) {
    return corrupt("'weight_map' is missing, empty or not an object");
  }
  SafetensorsIndex index;
  std::set<std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainName(file.get<std::string>())) {
      return corrupt(
          fmt::format("tensor '{}' is not placed in a .safetensors file of this folder", Printable(tensor)));
    }
    files.insert(file.get<std::string>());
    index.file_of.emplace(tensor, file.get<std::string>());
  }
  if (files.size() > kMaxFiles) {
    return corrupt(fmt::format("names {} files; {} are allowed", Grouped(files.size()), Grouped(kMaxFiles)));
  }
  index.files.assign(files.begin(), files.end());
  return index;
}

}  // namespace blockgtq
