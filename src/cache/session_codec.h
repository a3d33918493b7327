// A sequence as the tensors of a session file (session.cc): which there are, and copying them.
//
// In checksum order: "tokens" I32 [length], then for each layer l
//   layers.l.pages   U8 [pages, page bytes]            that hold codes (tokens, when uncompressed); of a
//                                                      windowed layer those that what follows sees into
//   layers.l.window  U8 [tiles, kv_heads, tile bytes]  that hold the tokens [coded_end, length)
//   layers.l.sinks   U8 [kv_heads, sink tile bytes]
// A tensor without elements is left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/kv_cache_impl.h"
#include "src/formats/safetensors.h"

namespace blockgtq {

/// Moves one sequence between a cache's memory and the tensors of a session.
class SessionCodec {
 public:
  explicit SessionCodec(const KvCache& cache) : impl_(*cache.impl_) {}

  using Sequence = KvCache::Impl::Sequence;
  const Sequence& At(SequenceId id) const { return impl_.At(id); }
  int layers() const { return impl_.geometry.layers; }

  /// The tensors of a session in this state, in order; those without elements left out.
  std::vector<SafetensorsShape> Shapes(const SequenceState& state) const;
  /// Those of one layer.
  std::vector<SafetensorsShape> LayerShapes(const SequenceState& state, int layer) const;
  /// Checks that a sequence of this cache can be in this state.
  Status CheckState(const std::string& name, const SequenceState& state) const;
  /// Before room is made for an empty sequence: pages that a session in this state lacks are not wanted.
  void StartAt(SequenceId id, const SequenceState& state) { impl_.StartAt(state, impl_.At(id)); }
  /// Copies the tensors of one layer of a sequence, in the order of Shapes, slots that hold no token as
  /// zeros.
  Status GatherLayer(const Sequence& sequence, int layer, std::byte* out) const;
  /// Fills a sequence that has room for state.length tokens from tensors [Shapes], tokens included.
  Status Scatter(SequenceId id, const SequenceState& state,
                 std::span<const std::span<const std::byte>> tensors);

 private:
  int64_t StoredPages(const SequenceState& state) const;
  /// The first page of a layer that is stored: what a sequence needs to go on.
  int64_t FirstStored(int layer, const SequenceState& state) const {
    return impl_.FirstNeeded(impl_.GroupOf(layer), state);
  }
  Status GatherPages(const Sequence& sequence, int layer, std::byte*& out) const;
  Status GatherExact(const Sequence& sequence, int layer, std::byte*& out) const;
  bool TurnsKeys() const {
    return !impl_.packed() && impl_.memory().keys_by_token() && impl_.geometry.latent_dims == 0;
  }
  int64_t ElementBytes() const { return impl_.options.kind == CacheKind::kFloat ? 4 : 2; }

  KvCache::Impl& impl_;
};

}  // namespace blockgtq
