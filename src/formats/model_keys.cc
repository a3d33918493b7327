// See model_keys.h.
#include "src/formats/model_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace blockgtq {
namespace {

const char* Describe(const ModelValue& value) {
  static constexpr const char* kKinds[] = {"an integer",       "a number",           "a bool",
                                           "a string",         "a list of integers", "a list of numbers",
                                           "a list of strings"};
  static_assert(std::variant_size_v<ModelValue> == std::size(kKinds));
  return kKinds[value.index()];
}

/// 0, false, an empty text or list: the same as no key.
bool SaysNothing(const ModelValue& value) {
  return std::visit(
      [](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T>) {
          return v == T{};
        } else {
          return v.empty();
        }
      },
      value);
}

}  // namespace

ModelKeys::ModelKeys(std::string where, std::function<std::string(std::string_view)> spell)
    : where_(std::move(where)), spell_(std::move(spell)) {}

void ModelKeys::Set(std::string key, ModelValue value, std::string spelled) {
  entries_.insert_or_assign(std::move(key), Entry{std::move(value), std::move(spelled)});
}

std::vector<std::string> ModelKeys::Names() const {
  std::vector<std::string> names;
  for (const auto& [key, entry] : entries_) names.push_back(key);
  return names;
}

const ModelValue* ModelKeys::Peek(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

const ModelValue* ModelKeys::Find(std::string_view key) const {
  read_.emplace(key);
  return Peek(key);
}

bool ModelKeys::Has(std::string_view key) const { return Find(key) != nullptr; }

bool ModelKeys::IsList(std::string_view key) const {
  const ModelValue* value = Find(key);
  return value != nullptr && value->index() >= 4;
}

Status ModelKeys::Error(ErrorCode code, std::string_view key, const std::string& what) const {
  const auto found = entries_.find(key);
  const bool own = found != entries_.end() && !found->second.spelled.empty();
  return Status(code, fmt::format("{}: {} {}", where_, own ? found->second.spelled : spell_(key), what));
}

Status ModelKeys::Mismatch(std::string_view key, const ModelValue* found, const char* wanted) const {
  if (found == nullptr) {
    return Error(ErrorCode::kCorruptFile, key, fmt::format("is missing ({} is needed)", wanted));
  }
  return Error(ErrorCode::kCorruptFile, key, fmt::format("is {}; {} is needed", Describe(*found), wanted));
}

Result<int64_t> ModelKeys::Int(std::string_view key) const {
  const ModelValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* number = std::get_if<int64_t>(value)) return *number;
  }
  return Mismatch(key, value, "an integer");
}

Result<double> ModelKeys::Real(std::string_view key) const {
  const ModelValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* number = std::get_if<double>(value)) return *number;
    if (const auto* number = std::get_if<int64_t>(value)) return static_cast<double>(*number);
  }
  return Mismatch(key, value, "a number");
}

Result<std::string> ModelKeys::Text(std::string_view key) const {
  const ModelValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* text = std::get_if<std::string>(value)) return *text;
  }
  return Mismatch(key, value, "a string");
}

Result<bool> ModelKeys::Flag(std::string_view key) const {
  const ModelValue* value = Find(key);
  if (value != nullptr) {
    if (const bool* flag = std::get_if<bool>(value)) return *flag;
  }
  return Mismatch(key, value, "a bool");
}

Result<std::vector<int64_t>> ModelKeys::Ints(std::string_view key) const {
  const ModelValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(value)) return *list;
  }
  return Mismatch(key, value, "a list of integers");
}

Result<std::vector<double>> ModelKeys::Reals(std::string_view key) const {
  const ModelValue* value = Find(key);
  if (value != nullptr) {
    if (const auto* list = std::get_if<std::vector<double>>(value)) return *list;
    if (const auto* list = std::get_if<std::vector<int64_t>>(value)) {
      return std::vector<double>(list->begin(), list->end());
    }
  }
  return Mismatch(key, value, "a list of numbers");
}

Result<int64_t> ModelKeys::IntOr(std::string_view key, int64_t fallback) const {
  return Has(key) ? Int(key) : Result<int64_t>(fallback);
}

Result<double> ModelKeys::RealOr(std::string_view key, double fallback) const {
  return Has(key) ? Real(key) : Result<double>(fallback);
}

Result<std::string> ModelKeys::TextOr(std::string_view key, std::string_view fallback) const {
  return Has(key) ? Text(key) : Result<std::string>(std::string(fallback));
}

Result<bool> ModelKeys::FlagOr(std::string_view key, bool fallback) const {
  return Has(key) ? Flag(key) : Result<bool>(fallback);
}

Result<int64_t> ModelKeys::Dimension(std::string_view key, int64_t limit) const {
  BGTQ_ASSIGN_OR_RETURN(const int64_t value, Int(key));
  if (value < 1 || value > limit) {
    return Error(ErrorCode::kCorruptFile, key, fmt::format("is {}, not in 1..{}", value, limit));
  }
  return value;
}

bool ModelKeys::Says(std::string_view key) const {
  const ModelValue* value = Peek(key);
  return value != nullptr && !SaysNothing(*value);
}

Status ModelKeys::CheckAllRead(std::span<const std::string_view> harmless) const {
  for (const auto& [key, entry] : entries_) {
    if (read_.contains(key) || SaysNothing(entry.value)) continue;
    if (std::find(harmless.begin(), harmless.end(), key) != harmless.end()) continue;
    return Error(ErrorCode::kUnsupported, key, "is not a setting that this build knows for the architecture");
  }
  return Status::Ok();
}

}  // namespace blockgtq
