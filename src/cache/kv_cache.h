// The paged KV cache of a model: packed records (or uncompressed tiles) in 64-token pages, block tables,
// sequences, and each sequence's exact tokens (sinks and recent window). It keeps the books and the memory;
// attention and encoding are the backend's (cpu/attention_op.h), which asks here where a token's bytes are.
//
// Life of a token of a packed sequence: it is stored exactly in its window tile; when its page leaves the
// window the backend encodes the page's tokens [coded_end, page end) into the page's records and moves
// coded_end. So tokens [0, coded_end) are codes, [coded_end, length) are exact, and [0, sinks) are exact as
// well as coded. With recent = 0 every token is encoded as it is appended. A simulated sequence lives the
// same life, with what its codes would read as in place of records. Uncompressed kinds keep every token exact
// in its page; coded_end stays 0.
//
// Layers with a sliding window have pages and block tables of their own. They give a page back once it is
// coded and no token to come sees into it, nor would after the last kRewindTokens were taken back: a sequence
// can be cut, and forked, down to there (or to nothing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/cache_memory.h"
#include "src/codec/plan.h"
#include "src/codec/recipe.h"
#include "src/codec/simulated.h"

namespace blockgtq {

struct CacheGeometry {
  int layers = 0, kv_heads = 0, head_dim = 0;
  /// > 0 in a cache of latents (MLA): the last latent_dims of a token's key are its value as well, and
  /// nothing but the key is stored.
  int latent_dims = 0;
  int64_t window = 0;  // tokens that a token of a windowed layer sees, itself included; 0: no windows
  std::vector<uint8_t> windowed{};  // by layer; empty: every layer, where there is a window
  bool is_windowed(int layer) const {
    return window > 0 && (windowed.empty() || windowed[static_cast<size_t>(layer)] != 0);
  }
};

struct CacheOptions {
  CacheKind kind = CacheKind::kPacked;
  int sinks = 4;    // 0..64 first tokens kept in fp16; 0 for uncompressed kinds, where every token is exact
  int recent = 64;  // at least this many last tokens kept in fp16 (up to 64 more, until their page is full);
                    // 0 for uncompressed kinds
  int64_t max_tokens = 0;         // capacity over all sequences; rounded up to whole pages
  std::string model;              // identifies the model (a hash); sessions of another model are refused
  CacheMemory* memory = nullptr;  // where the bytes live; must outlive the cache. null: HostMemory()
  std::shared_ptr<const SimulatedHeads> simulated = nullptr;  // kSimulated only: what tokens become
};

/// The books of one sequence.
struct SequenceState {
  int64_t length = 0;     // tokens whose every layer is stored
  int64_t coded_end = 0;  // tokens [0, coded_end) are codes
};

/// A sequence of a cache with windows can be cut by so many tokens at any time.
inline constexpr int64_t kRewindTokens = 64;
/// Most groups of layers (KvCache::groups).
inline constexpr int kMostPageGroups = 2;

using SequenceId = int;

/// Sequence ids are the lowest free ones; using an id that is not in the cache is a programming error
/// (undefined, asserted in debug builds), as are layers, heads and tiles out of range. One thread at a time
/// may change the books; PageHead, WindowTile and SinkTile may be called from many threads in between.
///
/// The host's memory is reserved for max_tokens but becomes resident only as it is written, and goes back to
/// the operating system with freed pages; a device's is taken whole. A simulated cache is refused where the
/// host has less free memory. New pages are zero. Pointers are to options().memory.
class KvCache {
 public:
  /// plan: required for kPacked (must outlive the cache), ignored otherwise.
  /// Errors: kInvalidArgument (options; recent shorter than the tokens that a simulated recipe codes
  /// together), kMismatch (plan or simulated heads against geometry), kOutOfMemory (states bytes wanted).
  static Result<std::unique_ptr<KvCache>> Create(const CacheGeometry& geometry, const CacheOptions& options,
                                                 const Plan* plan);
  ~KvCache();

  const CacheGeometry& geometry() const;
  /// As honoured: max_tokens rounded up, sinks and recent 0 for uncompressed kinds.
  const CacheOptions& options() const;
  const Plan* plan() const;

  /// Errors: kOutOfMemory (the window's and sinks' memory).
  Result<SequenceId> AddSequence();
  void RemoveSequence(SequenceId sequence);
  /// A new sequence with the same first `tokens` tokens, as Truncate of a copy leaves it: whole coded pages
  /// (whole pages, for uncompressed kinds) are shared (refcounted), the rest is copied. share = false: every
  /// page is copied. Errors: kOutOfMemory; kInvalidArgument when tokens is negative or > length, or so few
  /// that pages of windowed layers are missing. Nothing changes then.
  Result<SequenceId> ForkSequence(SequenceId source, int64_t tokens, bool share = true);
  SequenceState state(SequenceId sequence) const;
  /// Whether layers have a sliding window: then a sequence cannot be cut to any length.
  bool has_windows() const;
  /// For measurements at depths that would take long to compute: puts `pages` pages between the coded tokens
  /// and the exact ones (at the end of whole pages, for uncompressed kinds), copies of those before them in
  /// turn, which keep the positions that they were coded for. pages: a multiple of window_tiles().
  /// Errors: kInvalidArgument when there is no whole page to copy, or pages is no such multiple;
  /// kOutOfMemory.
  Status InsertCopies(SequenceId id, int64_t pages);

  /// Makes room to append `tokens` tokens: allocates (zeroed) pages, copies a shared page that would be
  /// written. Errors: kOutOfMemory, which states tokens wanted and free; kInvalidArgument when tokens is
  /// negative. Nothing changes then.
  Status Reserve(SequenceId id, int64_t tokens);
  /// Declares that every layer has stored `tokens` more tokens and that codes now reach coded_end.
  /// Precondition: room was reserved; coded_end does not shrink nor pass the new length, and reaches at least
  /// CodedEndBefore(new length) (0 for uncompressed kinds).
  void Commit(SequenceId id, int64_t tokens, int64_t coded_end);
  /// Rolls back to the first `length` tokens: frees pages past it, erases the codes of dropped tokens in the
  /// last page (in a copy, when the page is shared). The exact window may be shorter than `recent`
  /// afterwards, since tokens already coded stay coded. Errors: kInvalidArgument when length is negative,
  /// past the end, or so short that pages of windowed layers are missing; kOutOfMemory when a shared page
  /// must be copied and none is free. Nothing changes then.
  Status Truncate(SequenceId id, int64_t length);

  /// Where codes must reach before the token at `position` attends: every whole page that ends at or before
  /// position - recent (recent > 0), all earlier tokens (recent = 0); 0 for uncompressed kinds.
  int64_t CodedEndBefore(int64_t position) const;

  /// Bytes of head `kv_head`'s part of tokens 64 tile .. 64 tile + 63 of `layer`: a packed record, or an
  /// exact tile of 64 tokens for uncompressed kinds; a page that a windowed layer still has; for kSimulated
  /// two fp32 tiles, what the tokens' codes read as and then (ExactTileBytes further) the tokens as they
  /// were. Valid until the next Reserve, Truncate or Remove of that sequence.
  std::byte* PageHead(SequenceId sequence, int layer, int kv_head, int64_t tile);
  /// The exact tile of the recent window that holds tokens of page `tile` (a ring of window_tiles() tiles);
  /// coded kinds with recent > 0 only.
  std::byte* WindowTile(SequenceId sequence, int layer, int kv_head, int64_t tile);
  int window_tiles() const;
  /// The exact tile of the sinks (sink_tile_tokens() slots); coded kinds with sinks > 0 only.
  std::byte* SinkTile(SequenceId sequence, int layer, int kv_head);
  int sink_tile_tokens() const;  // sinks rounded up to 16

  /// The same places for kernels that find them themselves. Layers that keep the same tokens are a group,
  /// with memory and block tables of its own: group 0 has those that see everything, where there are any; the
  /// last one those with the window. Layer `layer`'s part of block b starts at pool_base(group) + b *
  /// block_bytes(group) + layer_offset(layer), head h's in it at head_offset(layer, h).
  int groups() const;
  int group_of(int layer) const;
  std::byte* pool_base(int group) const;
  int64_t block_bytes(int group) const;
  int64_t layer_offset(int layer) const;
  int64_t head_offset(int layer, int kv_head) const;
  /// The block ids of a sequence's pages in order; -1: given back. Every group has as many. Valid as PageHead
  /// is.
  std::span<const int32_t> blocks(SequenceId sequence, int group) const;
  /// The exact tiles of a sequence, [layers, kv_heads, window_tiles()] of the window, then [layers, kv_heads]
  /// of the sinks; null when there are none.
  std::byte* exact_base(SequenceId sequence) const;

  /// Bytes that a sequence holds now: pages (a shared page counts in each; a simulated one counts what its
  /// codes would take), its whole window ring and sinks.
  int64_t SequenceBytes(SequenceId sequence) const;
  /// What `tokens` tokens would take in fp16, for comparison.
  int64_t HalfBytes(int64_t tokens) const;
  int64_t free_tokens() const;

 private:
  KvCache();
  struct Impl;
  std::unique_ptr<Impl> impl_;
  friend class SessionCodec;
};

/// Bytes of an exact tile: K^T [head_dim, tile_tokens], V [tile_tokens, head_dim]; of latents: K
/// [tile_tokens, head_dim] alone.
inline int64_t ExactTileBytes(bool half, int head_dim, int tile_tokens, bool latents = false) {
  return int64_t{latents ? 1 : 2} * head_dim * tile_tokens * (half ? 2 : 4);
}

}  // namespace blockgtq
