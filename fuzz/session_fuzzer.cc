// Loads arbitrary bytes as a session into caches of each kind. A refused session must leave the cache as it
// was; an accepted one must be removable without a trace. Wrong checksums are repaired from the error's text,
// so that the code behind the check is reached. Input: session_caches.h.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fuzz/session_caches.h"
#include "src/cache/session.h"

namespace blockgtq {
namespace {

KvCache& Cache(int index) {
  static const Plan plan = SmallSessionPlan();
  static const std::vector<std::unique_ptr<KvCache>> caches = [] {
    std::vector<std::unique_ptr<KvCache>> made;
    for (int i = 0; i < kSessionCaches; ++i) made.push_back(MakeSessionCache(i, plan));
    return made;
  }();
  return *caches[index % kSessionCaches];
}

void Require(bool condition) {
  if (!condition) std::abort();
}

// Loads once; returns the error's text, empty when the session was accepted.
std::string Load(KvCache& cache, std::span<const std::byte> bytes) {
  const int64_t free_before = cache.free_tokens();
  const Result<LoadedSession> loaded = LoadSessionFromBytes(cache, bytes, "fuzz");
  if (loaded.ok()) {
    const SequenceState state = cache.state(loaded->sequence);
    Require(state.length == static_cast<int64_t>(loaded->tokens.size()) && state.coded_end <= state.length);
    Require(cache.Truncate(loaded->sequence, state.length / 2).ok());
    cache.RemoveSequence(loaded->sequence);
  }
  Require(cache.free_tokens() == free_before);
  return loaded.status().message();
}

}  // namespace
}  // namespace blockgtq

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  blockgtq::KvCache& cache = blockgtq::Cache(data[0]);
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto load = [&] {
    return blockgtq::Load(cache, std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
  };
  const std::string message = load();
  const std::string saved_mark = "checksum is \"", computed_mark = "\", its content's ";
  const size_t saved = message.find(saved_mark), computed = message.rfind(computed_mark);
  if (saved == std::string::npos || computed == std::string::npos) return 0;
  const std::string wrong = message.substr(saved + saved_mark.size(), 16);
  const std::string right = message.substr(computed + computed_mark.size(), 16);
  const size_t at = bytes.find(wrong);
  if (wrong.size() != 16 || right.size() != 16 || at == std::string::npos) return 0;
  bytes.replace(at, 16, right);
  load();
  return 0;
}
