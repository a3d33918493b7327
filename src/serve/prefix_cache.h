// Beginnings of earlier prompts, kept in the KV cache so that a prompt that begins alike starts from there.
//
// An entry is a fork of a sequence, made when its prompt had reached a cut: pages of codes are shared
// (refcounted), the exact window of that moment is copied. Prompts are always run from cut to cut, so what
// continues from an entry is, to the bit, what the prompt gives when it is run whole.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/serve/prompt_cuts.h"
#include "src/text/tokenizer.h"

namespace blockgtq::serve {

/// keys[i] is the hash of the tokens before cut i + 1, for every cut.
std::vector<uint64_t> CutKeys(std::span<const Token> tokens, const PromptCuts& cuts);

class PrefixCache {
 public:
  /// cache outlives this. Its plan and model are part of what an entry means: a KvCache has one of each for
  /// its life, so a key is a hash of tokens alone. max_entries 0: nothing is ever kept.
  PrefixCache(KvCache& cache, const PromptCuts& cuts, size_t max_entries)
      : cache_(cache), cuts_(cuts), max_entries_(max_entries) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Tokens of the longest entry, at most max_tokens long, that `tokens` begins with; 0: none. keys:
  /// CutKeys of tokens. Changes nothing.
  int64_t Find(std::span<const Token> tokens, std::span<const uint64_t> keys, int64_t max_tokens) const;
  /// A new sequence with the `length` tokens that Find gave; the entry counts as used now. Errors: those of
  /// KvCache::ForkSequence.
  Result<SequenceId> Fork(std::span<const uint64_t> keys, int64_t length);
  /// Keeps the sequence's whole content: `tokens`, up to a cut whose key is `key`. Without
  /// room (entries are evicted here for their number, not for their pages) nothing is kept.
  void Insert(SequenceId sequence, std::span<const Token> tokens, uint64_t key);
  /// Drops the entry that was used longest ago. False when there is none.
  bool EvictOldest();

  size_t entries() const { return entries_.size(); }
  int64_t evictions() const { return evictions_; }

 private:
  struct Entry {
    uint64_t key = 0;
    SequenceId sequence = 0;
    std::vector<Token> tokens;  // compared, so that equal hashes of different texts do no harm
  };
  using Entries = std::list<Entry>;  // used last first

  KvCache& cache_;
  PromptCuts cuts_;
  size_t max_entries_;
  Entries entries_;
  std::unordered_map<uint64_t, Entries::iterator> by_key_;
  int64_t evictions_ = 0;
};

}  // namespace blockgtq::serve
