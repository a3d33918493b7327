// Byte-pair merging of one piece of text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace blockgtq {

/// Pairs of tokens that merge, with their rank and result. Immutable after the last Add.
class MergeTable {
 public:
  struct Merge {
    int32_t rank;  // lower merges first
    int32_t result;
  };

  explicit MergeTable(size_t capacity);
  /// The first of two equal pairs stays. At most `capacity` calls. Ids are not negative.
  void Add(int32_t left, int32_t right, Merge merge);
  /// nullptr when the pair does not merge.
  const Merge* Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  size_t Home(uint64_t key) const;
  std::vector<Slot> slots_;  // open addressing, linear probing; a power of two
  int shift_;
};

/// Merges pieces. Holds scratch memory: one a thread.
class BpeMerger {
 public:
  explicit BpeMerger(const MergeTable& table) : table_(table) {}

  /// Appends the tokens of a piece that begins as `tokens`: applies the merge of lowest rank, leftmost first,
  /// until none applies. A negative token merges with nothing and is dropped. O(n log n).
  void Append(std::span<const int32_t> tokens, std::vector<int32_t>* out);

 private:
  struct Symbol {
    int32_t token;  // kDead once merged into its left neighbour
    uint32_t previous, next;
  };
  struct Candidate {
    int32_t rank;
    uint32_t left, right;             // symbols
    int32_t left_token, right_token;  // as they were: a candidate is stale when a symbol has changed
    int32_t result;
  };
  void Push(uint32_t left, uint32_t right);

  const MergeTable& table_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace blockgtq
