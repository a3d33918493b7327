// A plain model of the KV cache for its tests: every token has a number, from which the bytes it must have
// left in pages, window and sinks follow. It shares no code with the cache: the bits of a token in a record
// come from record.h's place functions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/codec/record.h"

namespace blockgtq {

inline uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// `words` words that follow from token, layer and head.
inline std::vector<uint64_t> TokenWords(uint32_t token, int layer, int head, size_t words) {
  std::vector<uint64_t> out(words);
  const uint64_t stream = Mix(token * uint64_t{1009} + layer * 31 + head);
  for (size_t i = 0; i < words; ++i) out[i] = Mix(stream + i);
  return out;
}

/// A plan whose heads differ in size; its matrices are arbitrary, since the cache does not read them.
inline Plan TestPlan(int layers, int kv_heads, uint64_t seed = 1) {
  constexpr int kDim = 32;
  Plan plan;
  plan.recipe = "aligned";
  plan.seed = seed;
  plan.model.layers = layers;
  plan.model.heads = plan.model.kv_heads = kv_heads;
  plan.model.head_dim = kDim;
  for (int i = 0; i < layers * kv_heads; ++i) {
    HeadPlan head;
    head.head_dim = kDim;
    const int high = std::vector<int>{5, 4, 8}[i % 3], low = std::vector<int>{2, 3, 1}[i % 3];
    head.groups = {{high, high, 0, 1, 16, 1.0f}, {low, low, 1, 1, 16, 1.0f}};
    head.value = {3 - i % 2, 3 - i % 2, 0, 2, kDim, 1.0f};
    head.key_transform.assign(kDim * kDim, 0.5f * static_cast<float>(seed));
    head.query_transform.assign(kDim * kDim, 0.5f);
    head.value_transform.assign(kDim * kDim, 0.25f);
    head.norm_type = i % 4 == 3 ? NormType::kHalf : NormType::kLog8;
    plan.heads.push_back(head);
  }
  return plan;
}

/// The bits of each token of a record: [64] masks of record size, as words.
inline std::vector<std::vector<uint64_t>> TokenMasks(const HeadPlan& plan) {
  const RecordLayout layout = RecordLayout::For(plan);
  std::vector<std::vector<uint8_t>> masks(kPageTokens, std::vector<uint8_t>(layout.bytes, 0));
  const auto mark_codes = [](std::vector<uint8_t>& mask, int unit_offset, int width, UnitPlace place) {
    ForEachCodeBit(width, place.quad, place.code, [&](int word, int bit, int) {
      mask[unit_offset + (word * 32 + place.lane) * 4 + bit / 8] |= uint8_t{1} << (bit % 8);
    });
  };
  const int norm_bytes = plan.norm_type == NormType::kHalf ? 2 : 1;
  for (int token = 0; token < kPageTokens; ++token) {
    for (int dim = 0; dim < kUnitDims; ++dim) {
      for (size_t unit = 0; unit < layout.key_unit.size(); ++unit) {  // one unit a group in these plans
        mark_codes(masks[token], layout.key_unit[unit], plan.groups[unit].width, KeyPlace(token, dim));
      }
      for (const int unit : layout.value_unit) {
        mark_codes(masks[token], unit, plan.value.width, ValuePlace(token, dim));
      }
    }
    for (int b = 0; b < norm_bytes; ++b) {
      for (const int norm : layout.key_norm) masks[token][norm + NormSlot(token) * norm_bytes + b] = 0xff;
      masks[token][layout.value_norm + NormSlot(token) * norm_bytes + b] = 0xff;
    }
  }
  std::vector<std::vector<uint64_t>> words(kPageTokens, std::vector<uint64_t>(layout.bytes / 8));
  for (int token = 0; token < kPageTokens; ++token) {
    std::memcpy(words[token].data(), masks[token].data(), masks[token].size());
  }
  return words;
}

/// Drives a cache as a backend does, and knows what every byte must be.
class CacheModel {
 public:
  struct Sequence {
    std::vector<uint32_t> tokens;
    int64_t coded_end = 0;
    std::vector<int> pages;  // labels: equal in two sequences when they share the page
  };

  CacheModel(const CacheGeometry& geometry, const CacheOptions& options, const Plan* plan)
      : geometry_(geometry), packed_(options.kind == CacheKind::kPacked) {
    auto created = KvCache::Create(geometry, options, plan);
    EXPECT_TRUE(created.ok()) << created.status().message();
    cache = std::move(*created);
    if (!packed_) return;
    for (const HeadPlan& head : plan->heads) masks_.push_back(TokenMasks(head));
  }

  std::unique_ptr<KvCache> cache;
  std::map<SequenceId, Sequence> sequences;

  int64_t free_pages() const {
    std::set<int> used;
    for (const auto& [id, sequence] : sequences) used.insert(sequence.pages.begin(), sequence.pages.end());
    return cache->options().max_tokens / kPageTokens - static_cast<int64_t>(used.size());
  }

  SequenceId Add() {
    const auto id = cache->AddSequence();
    EXPECT_TRUE(id.ok());
    EXPECT_FALSE(sequences.contains(*id));
    sequences[*id] = {};
    return *id;
  }

  void Remove(SequenceId id) {
    cache->RemoveSequence(id);
    sequences.erase(id);
  }

  void Append(SequenceId id, const std::vector<uint32_t>& tokens) {
    Sequence& sequence = sequences.at(id);
    const int64_t length = sequence.tokens.size(), count = tokens.size();
    const int64_t pages = (length + count + 63) / 64, have = sequence.pages.size();
    const int64_t first = (packed_ ? sequence.coded_end : length) / 64;
    int64_t needed = std::max<int64_t>(0, pages - have);
    for (int64_t page = first; page < have; ++page) needed += Shared(sequence.pages[page]);
    const bool fits = needed <= free_pages();
    const Status status = cache->Reserve(id, count);
    ASSERT_EQ(status.code(), fits ? ErrorCode::kOk : ErrorCode::kOutOfMemory) << status.message();
    if (!fits) return;
    for (int64_t page = first; page < have; ++page) {
      if (Shared(sequence.pages[page])) sequence.pages[page] = next_label_++;
    }
    while (static_cast<int64_t>(sequence.pages.size()) < pages) sequence.pages.push_back(next_label_++);
    for (const uint32_t token : tokens) AppendToken(id, sequence, token);
    cache->Commit(id, count, sequence.coded_end);
  }

  void Truncate(SequenceId id, int64_t length) {
    Sequence& sequence = sequences.at(id);
    const size_t pages = (length + 63) / 64;
    const bool copy = length % 64 != 0 && length < sequence.coded_end && Shared(sequence.pages[pages - 1]);
    const std::vector<int> dropped(sequence.pages.begin() + pages, sequence.pages.end());
    const bool room = free_pages() > 0 ||
                      std::any_of(dropped.begin(), dropped.end(), [&](int label) { return !Shared(label); });
    const Status status = cache->Truncate(id, length);
    const bool fits = !copy || room;
    ASSERT_EQ(status.code(), fits ? ErrorCode::kOk : ErrorCode::kOutOfMemory) << status.message();
    if (!fits) return;
    sequence.pages.resize(pages);
    if (copy) sequence.pages.back() = next_label_++;
    sequence.tokens.resize(length);
    sequence.coded_end = std::min(sequence.coded_end, length);
  }

  void Fork(SequenceId source, int64_t length, bool share = true) {
    const Sequence from = sequences.at(source);
    Sequence to{{from.tokens.begin(), from.tokens.begin() + length}, std::min(from.coded_end, length), {}};
    const int64_t shared = share ? (packed_ ? to.coded_end : length) / 64 : 0, pages = (length + 63) / 64;
    const bool fits = pages - shared <= free_pages();
    const auto id = cache->ForkSequence(source, length, share);
    ASSERT_EQ(id.status().code(), fits ? ErrorCode::kOk : ErrorCode::kOutOfMemory) << id.status().message();
    if (!fits) return;
    to.pages.assign(from.pages.begin(), from.pages.begin() + shared);
    while (static_cast<int64_t>(to.pages.size()) < pages) to.pages.push_back(next_label_++);
    ASSERT_FALSE(sequences.contains(*id));
    sequences[*id] = to;
  }

  /// What KvCache::InsertCopies does to a sequence with `whole` final pages.
  void InsertCopies(SequenceId id, int64_t whole, int64_t pages) {
    Sequence& s = sequences.at(id);
    const std::vector<uint32_t> before = s.tokens;
    s.tokens.resize(static_cast<size_t>(64 * whole));
    for (int64_t page = 0; page < pages; ++page) {
      const auto from = before.begin() + page % whole * 64;
      s.tokens.insert(s.tokens.end(), from, from + 64);
      s.pages.insert(s.pages.begin() + whole, next_label_++);
    }
    s.tokens.insert(s.tokens.end(), before.begin() + 64 * whole, before.end());
    if (packed_) s.coded_end += 64 * pages;
  }

  /// Takes over a sequence that was loaded into the cache with this content.
  void Adopt(SequenceId id, Sequence content) {
    const size_t pages = (content.tokens.size() + 63) / 64;
    content.pages.clear();
    while (content.pages.size() < pages) content.pages.push_back(next_label_++);
    sequences[id] = std::move(content);
  }

  void Check() const {
    ASSERT_EQ(cache->free_tokens(), free_pages() * kPageTokens);
    for (const auto& [id, sequence] : sequences) ASSERT_NO_FATAL_FAILURE(CheckSequence(id, sequence));
  }

 private:
  static constexpr int kHalfBytes = 2;
  int64_t ElementBytes() const { return cache->options().kind == CacheKind::kFloat ? 4 : kHalfBytes; }

  bool Shared(int label) const {
    int holders = 0;
    for (const auto& [id, sequence] : sequences) {
      holders += static_cast<int>(std::count(sequence.pages.begin(), sequence.pages.end(), label));
    }
    return holders > 1;
  }

  // Calls f(element index in tile, element index in the token's bytes) for every element of a slot.
  template <typename F>
  void ForEachExactElement(int tile_tokens, int slot, F f) const {
    const int dim = geometry_.head_dim;
    for (int d = 0; d < dim; ++d) f(d * tile_tokens + slot, d);
    for (int d = 0; d < dim; ++d) f(dim * tile_tokens + slot * dim + d, dim + d);
  }

  void StoreExact(std::byte* tile, int64_t element, int tile_tokens, int slot, uint32_t token, int layer,
                  int head) const {
    const auto words = TokenWords(token, layer, head, 2 * geometry_.head_dim * element / 8);
    const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
    ForEachExactElement(tile_tokens, slot, [&](int64_t to, int64_t from) {
      std::memcpy(tile + to * element, bytes + from * element, element);
    });
  }

  bool HoldsExact(const std::byte* tile, int64_t element, int tile_tokens, int slot, uint32_t token,
                  int layer, int head) const {
    const auto words = TokenWords(token, layer, head, 2 * geometry_.head_dim * element / 8);
    const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
    bool equal = true;
    ForEachExactElement(tile_tokens, slot, [&](int64_t to, int64_t from) {
      equal = equal && std::memcmp(tile + to * element, bytes + from * element, element) == 0;
    });
    return equal;
  }

  template <typename F>
  void ForEachHead(F f) const {
    for (int layer = 0; layer < geometry_.layers; ++layer) {
      for (int head = 0; head < geometry_.kv_heads; ++head) f(layer, head);
    }
  }

  void Encode(SequenceId id, const Sequence& sequence, int64_t position) {
    ForEachHead([&](int layer, int head) {
      const auto& mask = masks_[layer * geometry_.kv_heads + head][position % 64];
      const auto words = TokenWords(sequence.tokens[position], layer, head, mask.size());
      auto* record = reinterpret_cast<uint64_t*>(cache->PageHead(id, layer, head, position / 64));
      for (size_t i = 0; i < mask.size(); ++i) record[i] = (record[i] & ~mask[i]) | (words[i] & mask[i]);
    });
  }

  void AppendToken(SequenceId id, Sequence& sequence, uint32_t token) {
    const int64_t position = sequence.tokens.size();
    const int slot = position % 64;
    sequence.tokens.push_back(token);
    const CacheOptions& options = cache->options();
    ForEachHead([&](int layer, int head) {
      if (!packed_) {
        StoreExact(cache->PageHead(id, layer, head, position / 64), ElementBytes(), 64, slot, token, layer,
                   head);
      }
      if (options.recent > 0) {
        StoreExact(cache->WindowTile(id, layer, head, position / 64), kHalfBytes, 64, slot, token, layer,
                   head);
      }
      if (position < options.sinks) {
        StoreExact(cache->SinkTile(id, layer, head), kHalfBytes, cache->sink_tile_tokens(), position, token,
                   layer, head);
      }
    });
    if (packed_) {
      const int64_t coded = std::max(sequence.coded_end, cache->CodedEndBefore(position + 1));
      for (; sequence.coded_end < coded; ++sequence.coded_end) Encode(id, sequence, sequence.coded_end);
    }
  }

  void CheckSequence(SequenceId id, const Sequence& sequence) const {
    const int64_t length = sequence.tokens.size();
    ASSERT_EQ(cache->state(id).length, length);
    ASSERT_EQ(cache->state(id).coded_end, sequence.coded_end);
    const CacheOptions& options = cache->options();
    ForEachHead([&](int layer, int head) {
      for (int64_t page = 0; page * 64 < length; ++page) {
        const std::byte* bytes = cache->PageHead(id, layer, head, page);
        if (packed_) {
          CheckRecord(sequence, layer, head, page, bytes);
          continue;
        }
        for (int64_t p = page * 64; p < std::min(length, page * 64 + 64); ++p) {
          ASSERT_TRUE(HoldsExact(bytes, ElementBytes(), 64, p % 64, sequence.tokens[p], layer, head)) << p;
        }
      }
      if (options.recent > 0) {
        for (int64_t p = sequence.coded_end; p < length; ++p) {
          ASSERT_TRUE(HoldsExact(cache->WindowTile(id, layer, head, p / 64), kHalfBytes, 64, p % 64,
                                 sequence.tokens[p], layer, head))
              << p;
        }
      }
      for (int64_t p = 0; p < std::min<int64_t>(options.sinks, length); ++p) {
        ASSERT_TRUE(HoldsExact(cache->SinkTile(id, layer, head), kHalfBytes, cache->sink_tile_tokens(), p,
                               sequence.tokens[p], layer, head))
            << p;
      }
    });
  }

  void CheckRecord(const Sequence& sequence, int layer, int head, int64_t page,
                   const std::byte* record) const {
    const auto& masks = masks_[layer * geometry_.kv_heads + head];
    std::vector<uint64_t> expected(masks[0].size(), 0);
    for (int64_t p = page * 64; p < std::min(sequence.coded_end, page * 64 + 64); ++p) {
      const auto words = TokenWords(sequence.tokens[p], layer, head, expected.size());
      for (size_t i = 0; i < expected.size(); ++i) expected[i] |= words[i] & masks[p % 64][i];
    }
    ASSERT_EQ(std::memcmp(record, expected.data(), expected.size() * 8), 0)
        << "layer " << layer << " head " << head << " page " << page;
  }

  CacheGeometry geometry_;
  bool packed_;
  std::vector<std::vector<std::vector<uint64_t>>> masks_;  // [layers * kv_heads][64][record words]
  int next_label_ = 0;
};

inline std::vector<uint32_t> Tokens(uint32_t first, int64_t count) {
  std::vector<uint32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = first + static_cast<uint32_t>(i);
  return tokens;
}

}  // namespace blockgtq
