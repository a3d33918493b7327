// The state behind KvCache: made by kv_cache_create.cc, its books (kv_cache.cc), and what sessions
// (session.cc) read and fill.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/cache/kv_cache.h"
#include "src/cache/page_group.h"
#include "src/codec/record.h"

namespace blockgtq {

inline int64_t PagesOf(int64_t tokens) { return tokens / kPageTokens + (tokens % kPageTokens != 0); }
inline Status Invalid(std::string message) { return Status(ErrorCode::kInvalidArgument, std::move(message)); }

struct KvCache::Impl {
  struct Sequence {
    SequenceState state;
    std::vector<PageTable> tables;  // [groups]
    CacheRegion exact;              // window [layers, kv_heads, window_tiles], then sinks [layers, kv_heads]
  };

  /// Tiles of the window that hold the tokens [coded_end, length): [first, end).
  struct TileRange {
    int64_t first = 0, end = 0;
    int64_t count() const { return end - first; }
  };

  CacheGeometry geometry;
  CacheOptions options;
  const Plan* plan = nullptr;
  std::vector<RecordLayout> layouts;  // [layers, kv_heads]; kPacked only
  std::vector<int64_t> head_bytes;    // [layers, kv_heads] of a record or an exact tile
  std::vector<int64_t> head_offset;   // [layers, kv_heads] within a page
  int window_tiles = 0;
  int sink_tile_tokens = 0;
  int64_t window_tile_bytes = 0, sink_tile_bytes = 0;
  int64_t exact_bytes = 0;          // window and sinks of one sequence
  std::vector<PageGroup> groups;    // of the layers that see all, where there are any; then the windowed
  std::vector<int> group_of_layer;  // [layers]
  std::vector<int> layer_in_group;  // [layers]
  std::vector<std::unique_ptr<Sequence>> sequences;  // by id; null: free

  bool packed() const { return options.kind == CacheKind::kPacked; }
  /// Whether tokens become codes as they age.
  bool coded() const { return packed() || options.kind == CacheKind::kSimulated; }
  int64_t CodedEndBefore(int64_t position) const {
    if (!coded()) return 0;
    if (options.recent == 0) return position;
    return std::max<int64_t>(0, position - options.recent) / kPageTokens * kPageTokens;
  }
  size_t HeadIndex(int layer, int kv_head) const {
    return static_cast<size_t>(layer) * geometry.kv_heads + kv_head;
  }
  Sequence& At(SequenceId id) const;

  const PageGroup& GroupOf(int layer) const { return groups[static_cast<size_t>(group_of_layer[layer])]; }
  /// The page of `layer` in block `block` of its group.
  std::byte* Page(int layer, int32_t block) const {
    return GroupOf(layer).pool.Page(layer_in_group[layer], block);
  }
  std::byte* Page(const Sequence& sequence, int layer, int64_t tile) const {
    return Page(layer, sequence.tables[static_cast<size_t>(group_of_layer[layer])].blocks[tile]);
  }
  int64_t page_bytes(int layer) const { return GroupOf(layer).pool.page_bytes(layer_in_group[layer]); }
  /// The tokens whose page bytes are final.
  int64_t FinalTokens(const SequenceState& state) const { return coded() ? state.coded_end : state.length; }
  int64_t FirstNeeded(const PageGroup& group, const SequenceState& state, int64_t slack = 0) const {
    return group.FirstNeeded(state.length, FinalTokens(state), slack);
  }
  /// Errors: kInvalidArgument when pages that a sequence of so many tokens needs were given back.
  Status CheckRewind(const Sequence& sequence, const SequenceState& to) const;
  /// Makes `sequence`, which is empty, one whose pages before those that `state` needs were given back.
  void StartAt(const SequenceState& state, Sequence& sequence) const;
  int64_t FreeBlocks() const;
  std::byte* PageHead(const Sequence& sequence, int layer, int kv_head, int64_t tile) const {
    return Page(sequence, layer, tile) + head_offset[HeadIndex(layer, kv_head)];
  }
  std::byte* WindowTile(const Sequence& sequence, int layer, int kv_head, int64_t tile) const {
    const int64_t index =
        static_cast<int64_t>(HeadIndex(layer, kv_head)) * window_tiles + tile % window_tiles;
    return sequence.exact.data() + index * window_tile_bytes;
  }
  std::byte* SinkTile(const Sequence& sequence, int layer, int kv_head) const {
    const int64_t window =
        window_tile_bytes * window_tiles * static_cast<int64_t>(HeadIndex(geometry.layers, 0));
    return sequence.exact.data() + window + static_cast<int64_t>(HeadIndex(layer, kv_head)) * sink_tile_bytes;
  }
  TileRange WindowRange(const SequenceState& state) const;

  CacheMemory& memory() const { return *options.memory; }
  /// Erases the codes of slots [first_slot, 64) in a block, a page of each of a group's layers.
  Status EraseCodes(const PageGroup& group, int32_t block, int first_slot);
  Status MakeGroups(int64_t pages, const std::vector<int64_t>& page_bytes, const std::string& what);
  Status InsertPages(PageGroup& group, int64_t whole, int64_t pages, int64_t needed, PageTable& table);
  Status ForkPages(const Sequence& from, int64_t tokens, bool share, Sequence& to);
  /// Copies the exact tiles that a sequence in state to.state needs.
  Status CopyExact(const Sequence& from, Sequence& to);
  Result<SequenceId> Add();
};

}  // namespace blockgtq
