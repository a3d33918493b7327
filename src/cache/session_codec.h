// A sequence as the tensors of a session file (session.cc): which there are, and copying them.
//
// In checksum order: "tokens" I32 [length], then for each layer l
//   layers.l.pages   U8 [pages, page bytes]            pages that hold codes, or tokens when uncompressed
//   layers.l.window  U8 [tiles, kv_heads, tile bytes]  tiles that hold the tokens [coded_end, length)
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
  /// Checks that a sequence of this cache can be in this state.
  Status CheckState(const std::string& name, const SequenceState& state) const;
  /// Copies the tensors of one layer of a sequence, in the order of Shapes, slots that hold no token as
  /// zeros.
  Status GatherLayer(const Sequence& sequence, int layer, std::byte* out) const;
  /// Fills a sequence that has room for state.length tokens from tensors [Shapes], tokens included.
  Status Scatter(SequenceId id, const SequenceState& state,
                 std::span<const std::span<const std::byte>> tensors);

 private:
  int64_t StoredPages(const SequenceState& state) const;
  Status GatherPages(const Sequence& sequence, int layer, std::byte*& out) const;
  Status GatherExact(const Sequence& sequence, int layer, std::byte*& out) const;
  bool TurnsKeys() const {
    return !impl_.packed() && impl_.memory().keys_by_token() && impl_.geometry.latent_dims == 0;
  }
  int64_t ElementBytes() const { return impl_.options.kind == CacheKind::kFloat ? 4 : 2; }

  KvCache::Impl& impl_;
};

}  // namespace blockgtq
