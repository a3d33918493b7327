// A linked list of symbols and a heap of candidate merges.
#include "src/text/bpe.h"

#include <algorithm>
#include <bit>

namespace blockgtq {
namespace {

constexpr uint64_t kEmpty = ~uint64_t{0};  // no pair: ids are not negative
constexpr int32_t kDead = -2;
constexpr uint32_t kNone = ~uint32_t{0};
constexpr size_t kMaxSymbols = size_t{1} << 30;  // fits the 32-bit links

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t capacity) {
  const size_t slots = std::bit_ceil(capacity + capacity / 2 + 2);
  slots_.assign(slots, {kEmpty, {0, 0}});
  shift_ = 64 - std::countr_zero(slots);
}

size_t MergeTable::Home(uint64_t key) const {
  // Fibonacci hashing; the fold lets the right id reach the upper half of the product as the left one does.
  return static_cast<size_t>(((key ^ key >> 32) * 0x9E3779B97F4A7C15u) >> shift_);
}

void MergeTable::Add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = Key(left, right);
  size_t at = Home(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].key == kEmpty) slots_[at] = {key, merge};
}

const MergeTable::Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t key = Key(left, right);
  for (size_t at = Home(key); slots_[at].key != kEmpty; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].key == key) return &slots_[at].merge;
  }
  return nullptr;
}

void BpeMerger::Push(uint32_t left, uint32_t right) {
  const Symbol &a = symbols_[left], &b = symbols_[right];
  if (a.token < 0 || b.token < 0) return;
  const MergeTable::Merge* merge = table_.Find(a.token, b.token);
  if (merge != nullptr) heap_.push_back({merge->rank, left, right, a.token, b.token, merge->result});
}

void BpeMerger::Append(std::span<const int32_t> tokens, std::vector<int32_t>* out) {
  while (tokens.size() > kMaxSymbols) {
    Append(tokens.first(kMaxSymbols), out);
    tokens = tokens.subspan(kMaxSymbols);
  }
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  symbols_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    symbols_.push_back({tokens[i], i - 1, i + 1 < count ? i + 1 : kNone});
  }
  heap_.clear();
  for (uint32_t i = 1; i < count; ++i) Push(i - 1, i);
  std::make_heap(heap_.begin(), heap_.end(), later);

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate top = heap_.back();
    heap_.pop_back();
    Symbol &left = symbols_[top.left], &right = symbols_[top.right];
    if (left.token != top.left_token || right.token != top.right_token || left.next != top.right) continue;
    left.token = top.result;
    left.next = right.next;
    right.token = kDead;
    if (left.next != kNone) symbols_[left.next].previous = top.left;
    const auto push = [&](uint32_t a, uint32_t b) {
      const size_t before = heap_.size();
      Push(a, b);
      if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
    };
    if (left.previous != kNone) push(left.previous, top.left);
    if (left.next != kNone) push(top.left, left.next);
  }
  for (uint32_t i = count == 0 ? kNone : 0; i != kNone; i = symbols_[i].next) {
    if (symbols_[i].token >= 0) out->push_back(symbols_[i].token);
  }
}

}  // namespace blockgtq
