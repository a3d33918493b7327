// What a batch leaves in the cache: exact tokens as they come, codes as they leave the window.
#include <algorithm>
#include <iterator>
#include <vector>

#include "src/cpu/attention_op_impl.h"

namespace blockgtq::cpu {

/// Where tokens of page `tile` are kept exactly while segment `s` runs.
std::byte* AttentionOp::Impl::ExactTile(const Segment& s, int kv_head, int64_t tile) {
  if (!has_codes()) return cache.PageHead(s.slice->sequence, layer, kv_head, tile);
  if (!s.chunk_tiles) return cache.WindowTile(s.slice->sequence, layer, kv_head, tile);
  const int64_t index = s.chunk_offset + (tile - s.coded / kPageTokens);
  return chunk.data() + (index * kv_heads + kv_head) * WindowTileBytes();
}

/// Encodes tokens [begin, end) of one page from the segment's own rows.
void AttentionOp::Impl::EncodeRows(const Segment& s, int kv_head, int64_t begin, int64_t end,
                                   AttentionWorker& w) {
  const int64_t row = s.slice->first_row + s.first + (begin - s.position), stride = int64_t{kv_heads} * dim;
  Encode(s, kv_head, begin, end, RotatedKey(row, kv_head), Value(row, kv_head), stride, w);
}

/// Encodes tokens [begin, end) of one page from its exact tile.
void AttentionOp::Impl::EncodeTile(const Segment& s, int kv_head, int64_t begin, int64_t end,
                                   AttentionWorker& w) {
  const std::byte* tile = ExactTile(s, kv_head, begin / kPageTokens);
  w.key.resize(kPageTokens * dim);
  w.value.resize(kPageTokens * dim);
  for (int64_t t = begin; t < end; ++t) {
    LoadExact(tile_layout, tile, static_cast<int>(t % kPageTokens), &w.key[(t - begin) * dim],
              &w.value[(t - begin) * dim]);
  }
  Encode(s, kv_head, begin, end, w.key.data(), w.value.data(), dim, w);
}

void AttentionOp::Impl::Encode(const Segment& s, int kv_head, int64_t begin, int64_t end, const float* keys,
                               const float* values, int64_t stride, AttentionWorker& w) {
  if (simulated) {
    SimulatedCodes(cache, s.slice->sequence, layer, kv_head).Place(begin, end, keys, values, stride);
    return;
  }
  std::byte* record = cache.PageHead(s.slice->sequence, layer, kv_head, begin / kPageTokens);
  const int count = static_cast<int>(end - begin);
  if (!EncodeKeys(head(kv_head), rope(), keys, stride, count, begin, w.codes, record) ||
      (!latents && !EncodeValues(head(kv_head), values, stride, count, begin, w.codes, record))) {
    NoteNonFinite(begin);
  }
}

/// Second step of a simulated cache's encoding: tokens [begin, end) of one page, which Encode has put in
/// their places (as it has those that they depend on), as they are stored among `coded` codes.
void AttentionOp::Impl::SimulateCodes(const Segment& s, int kv_head, int64_t begin, int64_t end,
                                      int64_t coded, AttentionWorker& w) {
  if (end > begin)
    SimulatedCodes(cache, s.slice->sequence, layer, kv_head).Encode(begin, end, coded, w.simulated);
}

/// Codes of before a segment become what they are among those that it adds: narrower, where the method
/// narrows codes as memory fills.
void AttentionOp::Impl::ChangeCodes(const std::vector<Segment*>& wave) {
  struct Work {
    Segment* s;
    int64_t page;
  };
  std::vector<Work> work;
  for (Segment* s : wave) {
    const int64_t after = s->sees_own_codes ? s->end() : s->coded_after;
    if (after <= s->coded || cache.options().simulated->ChangesAfter(s->coded) > after) continue;
    for (int64_t page = 0; page * kPageTokens < s->coded; ++page) work.push_back({s, page});
  }
  if (work.empty()) return;
  pool.Run(static_cast<int64_t>(work.size()) * kv_heads, [&](int64_t i, int worker) {
    const Segment& s = *work[i / kv_heads].s;
    const int64_t begin = work[i / kv_heads].page * kPageTokens;
    const int kv_head = static_cast<int>(i % kv_heads);
    const int64_t after = s.sees_own_codes ? s.end() : s.coded_after;
    if (!SimulatedCodes(cache, s.slice->sequence, layer, kv_head).Changes(s.coded, after)) return;
    SimulateCodes(s, kv_head, begin, std::min(s.coded, begin + kPageTokens), after, workers[worker]);
  });
}

void AttentionOp::Impl::StoreSegment(const std::vector<Segment*>& wave) {
  struct Store {
    Segment* s;
    int64_t page;
  };
  std::vector<Store> stores;
  for (Segment* s : wave) {
    for (int64_t page = s->position / kPageTokens; page <= (s->end() - 1) / kPageTokens; ++page) {
      stores.push_back({s, page});
    }
  }
  const auto store = [&](int64_t i, int worker) {
    const Segment& s = *stores[i / kv_heads].s;
    const int64_t page = stores[i / kv_heads].page;
    const int kv_head = static_cast<int>(i % kv_heads);
    const int64_t begin = std::max(s.position, page * kPageTokens),
                  end = std::min(s.end(), (page + 1) * kPageTokens);
    std::byte* tile = s.sees_own_codes ? nullptr : ExactTile(s, kv_head, page);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = s.slice->first_row + s.first + (t - s.position);
      const float* key = RotatedKey(row, kv_head);
      const float* value = Value(row, kv_head);
      if (tile != nullptr) StoreExact(tile_layout, key, value, static_cast<int>(t % kPageTokens), tile);
      if (has_codes() && t < cache.options().sinks) {
        StoreExact(sink_layout, key, value, static_cast<int>(t),
                   cache.SinkTile(s.slice->sequence, layer, kv_head));
      }
    }
    if (s.sees_own_codes) EncodeRows(s, kv_head, begin, end, workers[worker]);
    // Exact tokens of earlier calls join the chunk's scratch tiles.
    if (s.chunk_tiles && cache.options().recent > 0 && page == s.position / kPageTokens) {
      for (int64_t t = s.coded; t < s.position; ++t) {
        AttentionWorker& w = workers[worker];
        w.key.resize(dim);
        w.value.resize(dim);
        const int slot = static_cast<int>(t % kPageTokens);
        LoadExact(tile_layout, cache.WindowTile(s.slice->sequence, layer, kv_head, t / kPageTokens), slot,
                  w.key.data(), w.value.data());
        StoreExact(tile_layout, w.key.data(), w.value.data(), slot, ExactTile(s, kv_head, t / kPageTokens));
      }
    }
  };
  const int64_t count = static_cast<int64_t>(stores.size()) * kv_heads;
  if (wave.size() == 1 && wave[0]->count == 1 && !wave[0]->sees_own_codes) {
    for (int64_t i = 0; i < count; ++i) store(i, 0);
  } else {
    pool.Run(count, store);
  }
  if (!simulated) return;
  pool.Run(count, [&](int64_t i, int worker) {
    const Segment& s = *stores[i / kv_heads].s;
    const int64_t page = stores[i / kv_heads].page;
    if (!s.sees_own_codes) return;
    SimulateCodes(s, static_cast<int>(i % kv_heads), std::max(s.position, page * kPageTokens),
                  std::min(s.end(), (page + 1) * kPageTokens), s.end(), workers[worker]);
  });
  std::vector<Segment*> own;
  std::copy_if(wave.begin(), wave.end(), std::back_inserter(own),
               [](const Segment* s) { return s->sees_own_codes; });
  ChangeCodes(own);
}

/// Encodes what leaves the window, and keeps what stays of a chunk's scratch tiles in the window ring.
void AttentionOp::Impl::Flush(const std::vector<Segment*>& wave) {
  struct Work {
    Segment* s;
    int64_t page;
  };
  std::vector<Work> work;
  for (Segment* s : wave) {
    if (s->sees_own_codes || (s->coded_after == s->coded && !s->chunk_tiles)) continue;
    const int64_t last = s->chunk_tiles ? (s->end() - 1) / kPageTokens : (s->coded_after - 1) / kPageTokens;
    for (int64_t page = s->coded / kPageTokens; page <= last; ++page) work.push_back({s, page});
  }
  if (work.empty()) return;
  pool.Run(static_cast<int64_t>(work.size()) * kv_heads, [&](int64_t i, int worker) {
    const Segment& s = *work[i / kv_heads].s;
    const int64_t page = work[i / kv_heads].page;
    const int kv_head = static_cast<int>(i % kv_heads);
    AttentionWorker& w = workers[worker];
    const int64_t begin = std::max(s.coded, page * kPageTokens);
    const int64_t end = std::min(s.coded_after, (page + 1) * kPageTokens);
    // A prompt chunk's own tokens are at hand in float; decoded tokens have been through the window.
    if (end > begin && s.chunk_tiles && begin >= s.position) {
      EncodeRows(s, kv_head, begin, end, w);
    } else if (end > begin) {
      EncodeTile(s, kv_head, begin, end, w);
    }
    if (s.chunk_tiles && cache.options().recent > 0 && (page + 1) * kPageTokens > s.coded_after) {
      std::copy_n(ExactTile(s, kv_head, page), WindowTileBytes(),
                  cache.WindowTile(s.slice->sequence, layer, kv_head, page));
    }
  });
  if (!simulated) return;
  pool.Run(static_cast<int64_t>(work.size()) * kv_heads, [&](int64_t i, int worker) {
    const Segment& s = *work[i / kv_heads].s;
    const int64_t page = work[i / kv_heads].page;
    SimulateCodes(s, static_cast<int>(i % kv_heads), std::max(s.coded, page * kPageTokens),
                  std::min(s.coded_after, (page + 1) * kPageTokens), s.coded_after, workers[worker]);
  });
  std::vector<Segment*> flushed;
  std::copy_if(wave.begin(), wave.end(), std::back_inserter(flushed),
               [](const Segment* s) { return !s->sees_own_codes; });
  ChangeCodes(flushed);
}

}  // namespace blockgtq::cpu
