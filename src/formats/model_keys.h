// A model's configuration under one set of names, whatever file it came from: GGUF's keys without the
// architecture before them ("block_count", "attention.head_count", "rope.freq_base").
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "blockgtq/status.h"

namespace blockgtq {

using ModelValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>,
                                std::vector<std::string>>;

/// Typed access that names file and key, as the file spells it, in every error. A key counts as read once it
/// was asked for, so that what nothing understands can be refused (CheckAllRead).
class ModelKeys {
 public:
  /// where: starts every message, e.g. the file's path. spell: a key as this file would spell it.
  ModelKeys(std::string where, std::function<std::string(std::string_view)> spell);
  ModelKeys() = default;

  /// spelled: how the file spells this key, where spell() would say otherwise.
  void Set(std::string key, ModelValue value, std::string spelled = "");

  std::vector<std::string> Names() const;
  bool Has(std::string_view key) const;
  /// The value whatever its type, or null; does not count as read.
  const ModelValue* Peek(std::string_view key) const;
  /// Whether there is a value that is not 0, false, an empty text or an empty list; does not count as read.
  bool Says(std::string_view key) const;
  /// A list, one value a layer for instance, where others have a single value.
  bool IsList(std::string_view key) const;

  // Errors: kCorruptFile saying what was found instead; Or: fallback when absent.
  Result<int64_t> Int(std::string_view key) const;
  Result<double> Real(std::string_view key) const;  // accepts integers
  Result<std::string> Text(std::string_view key) const;
  Result<bool> Flag(std::string_view key) const;
  Result<std::vector<int64_t>> Ints(std::string_view key) const;
  Result<std::vector<double>> Reals(std::string_view key) const;  // accepts integers
  Result<int64_t> IntOr(std::string_view key, int64_t fallback) const;
  Result<double> RealOr(std::string_view key, double fallback) const;
  Result<std::string> TextOr(std::string_view key, std::string_view fallback) const;
  Result<bool> FlagOr(std::string_view key, bool fallback) const;
  /// An integer in [1, limit].
  Result<int64_t> Dimension(std::string_view key, int64_t limit) const;

  /// "FILE: KEY what": an error about the key's value.
  Status Error(ErrorCode code, std::string_view key, const std::string& what) const;

  /// kUnsupported naming the first key that was never read and says something (not 0, false or an empty
  /// list). `harmless` names keys that change no result.
  Status CheckAllRead(std::span<const std::string_view> harmless) const;

 private:
  const ModelValue* Find(std::string_view key) const;
  Status Mismatch(std::string_view key, const ModelValue* found, const char* wanted) const;

  std::string where_;
  std::function<std::string(std::string_view)> spell_;
  struct Entry {
    ModelValue value;
    std::string spelled;
  };
  std::map<std::string, Entry, std::less<>> entries_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace blockgtq
