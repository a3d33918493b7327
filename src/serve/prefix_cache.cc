// See prefix_cache.h.
#include "src/serve/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <cassert>

namespace blockgtq::serve {

std::vector<uint64_t> CutKeys(std::span<const Token> tokens, const PromptCuts& cuts) {
  std::vector<uint64_t> keys;
  const int64_t count = cuts.Last(static_cast<int64_t>(tokens.size()));
  uint64_t key = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = cuts.At(i), step = cuts.At(i + 1) - first;
    key = XXH3_64bits_withSeed(&tokens[static_cast<size_t>(first)], static_cast<size_t>(step) * sizeof(Token),
                               key);
    keys.push_back(key);
  }
  return keys;
}

PrefixCache::~PrefixCache() {
  while (EvictOldest()) {
  }
}

int64_t PrefixCache::Find(std::span<const Token> tokens, std::span<const uint64_t> keys,
                          int64_t max_tokens) const {
  const int64_t cuts = std::min<int64_t>(static_cast<int64_t>(keys.size()), cuts_.Last(max_tokens));
  for (int64_t i = entries_.empty() ? 0 : cuts; i > 0; --i) {
    const auto found = by_key_.find(keys[static_cast<size_t>(i - 1)]);
    if (found == by_key_.end()) continue;
    if (std::ranges::equal(found->second->tokens, tokens.first(static_cast<size_t>(cuts_.At(i)))))
      return cuts_.At(i);
  }
  return 0;
}

Result<SequenceId> PrefixCache::Fork(std::span<const uint64_t> keys, int64_t length) {
  const auto found = by_key_.find(keys[static_cast<size_t>(cuts_.Last(length) - 1)]);
  assert(found != by_key_.end());
  entries_.splice(entries_.begin(), entries_, found->second);
  return cache_.ForkSequence(found->second->sequence, length);
}

void PrefixCache::Insert(SequenceId sequence, std::span<const Token> tokens, uint64_t key) {
  [[maybe_unused]] const auto length = static_cast<int64_t>(tokens.size());
  assert(length > 0 && cuts_.At(cuts_.Last(length)) == length);
  if (max_entries_ == 0 || by_key_.contains(key)) return;
  if (entries_.size() == max_entries_) EvictOldest();
  const Result<SequenceId> fork = cache_.ForkSequence(sequence, static_cast<int64_t>(tokens.size()));
  if (!fork.ok()) return;
  entries_.push_front({key, *fork, {tokens.begin(), tokens.end()}});
  by_key_[key] = entries_.begin();
}

bool PrefixCache::EvictOldest() {
  if (entries_.empty()) return false;
  cache_.RemoveSequence(entries_.back().sequence);
  by_key_.erase(entries_.back().key);
  entries_.pop_back();
  ++evictions_;
  return true;
}

}  // namespace blockgtq::serve
