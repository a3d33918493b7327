// See session_codec.h.
#include "src/cache/session_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace blockgtq {
namespace {

// Zeroes every slot outside [first, end) of an exact tile (ExactTileBytes).
void KeepExactSlots(const CacheGeometry& geometry, int64_t element_bytes, int tile_tokens, int64_t first,
                    int64_t end, std::byte* tile) {
  const int64_t head_dim = geometry.head_dim;
  const auto zero = [&](int64_t element, int64_t count) {
    std::memset(tile + element * element_bytes, 0, static_cast<size_t>(count * element_bytes));
  };
  const bool latents = geometry.latent_dims > 0;
  for (int64_t dim = 0; !latents && dim < head_dim; ++dim) {
    zero(dim * tile_tokens, first);
    zero(dim * tile_tokens + end, tile_tokens - end);
  }
  const int64_t values = latents ? 0 : head_dim * tile_tokens;
  zero(values, first * head_dim);
  zero(values + end * head_dim, (tile_tokens - end) * head_dim);
}

// Transposes the key part of an exact tile, [rows, cols] to [cols, rows].
void TransposeKeys(int64_t element_bytes, int rows, int cols, std::byte* tile) {
  const size_t bytes = static_cast<size_t>(element_bytes);
  const std::vector<std::byte> from(tile, tile + element_bytes * rows * cols);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      std::memcpy(tile + (col * rows + row) * element_bytes, from.data() + (row * cols + col) * element_bytes,
                  bytes);
    }
  }
}

}  // namespace

int64_t SessionCodec::StoredPages(const SequenceState& state) const {
  return PagesOf(impl_.packed() ? state.coded_end : state.length);
}

std::vector<SafetensorsShape> SessionCodec::Shapes(const SequenceState& state) const {
  std::vector<SafetensorsShape> shapes;
  if (state.length == 0) return shapes;
  shapes.push_back({"tokens", "I32", {state.length}});
  for (int layer = 0; layer < impl_.geometry.layers; ++layer) {
    const std::vector<SafetensorsShape> of_layer = LayerShapes(state, layer);
    shapes.insert(shapes.end(), of_layer.begin(), of_layer.end());
  }
  return shapes;
}

std::vector<SafetensorsShape> SessionCodec::LayerShapes(const SequenceState& state, int layer) const {
  std::vector<SafetensorsShape> shapes;
  const int64_t pages = StoredPages(state) - FirstStored(layer, state);
  const int64_t tiles = impl_.WindowRange(state).count(), heads = impl_.geometry.kv_heads;
  const std::string prefix = fmt::format("layers.{}.", layer);
  if (pages > 0) shapes.push_back({prefix + "pages", "U8", {pages, impl_.page_bytes(layer)}});
  if (tiles > 0) shapes.push_back({prefix + "window", "U8", {tiles, heads, impl_.window_tile_bytes}});
  if (impl_.sink_tile_bytes > 0) shapes.push_back({prefix + "sinks", "U8", {heads, impl_.sink_tile_bytes}});
  return shapes;
}

Status SessionCodec::CheckState(const std::string& name, const SequenceState& state) const {
  const bool strict = impl_.packed() && impl_.window_tiles == 0;
  const bool possible = state.coded_end <= state.length && (impl_.packed() || state.coded_end == 0) &&
                        (!strict || state.coded_end == state.length) &&
                        state.coded_end >= impl_.CodedEndBefore(state.length) &&
                        impl_.WindowRange(state).count() <= impl_.window_tiles;
  if (possible) return Status::Ok();
  return Status(ErrorCode::kCorruptFile, fmt::format("{}: a session of {} tokens cannot have coded_end {}",
                                                     name, state.length, state.coded_end));
}

Status SessionCodec::GatherPages(const Sequence& sequence, int layer, std::byte*& out) const {
  const int64_t page_bytes = impl_.page_bytes(layer), first = FirstStored(layer, sequence.state);
  const int64_t pages = StoredPages(sequence.state) - first;
  for (int64_t page = 0; page < pages; ++page) {
    BGTQ_RETURN_IF_ERROR(
        impl_.memory().Read(out + page * page_bytes, impl_.Page(sequence, layer, first + page), page_bytes));
  }
  if (TurnsKeys()) {
    for (int64_t tile = 0; tile < pages * impl_.geometry.kv_heads; ++tile) {
      TransposeKeys(ElementBytes(), kPageTokens, impl_.geometry.head_dim, out + tile * impl_.head_bytes[0]);
    }
  }
  const int64_t tokens = impl_.packed() ? sequence.state.coded_end : sequence.state.length;
  const int used = static_cast<int>(tokens % kPageTokens);
  for (int head = 0; used != 0 && head < impl_.geometry.kv_heads; ++head) {
    const size_t index = impl_.HeadIndex(layer, head);
    std::byte* last = out + (pages - 1) * page_bytes + impl_.head_offset[index];
    if (impl_.packed()) {
      EraseTokens(impl_.layouts[index], impl_.plan->heads[index], used,
                  {last, static_cast<size_t>(impl_.head_bytes[index])});
    } else {
      KeepExactSlots(impl_.geometry, ElementBytes(), kPageTokens, 0, used, last);
    }
  }
  out += pages * page_bytes;
  return Status::Ok();
}

Status SessionCodec::GatherExact(const Sequence& sequence, int layer, std::byte*& out) const {
  const SequenceState& state = sequence.state;
  const KvCache::Impl::TileRange window = impl_.WindowRange(state);
  const auto copy = [&](const std::byte* from, int64_t bytes, int tile_tokens, int64_t first,
                        int64_t end) -> Status {
    BGTQ_RETURN_IF_ERROR(impl_.memory().Read(out, from, bytes));
    KeepExactSlots(impl_.geometry, 2, tile_tokens, first, end, out);
    out += bytes;
    return Status::Ok();
  };
  for (int64_t tile = window.first; tile < window.end; ++tile) {
    const int64_t start = tile * kPageTokens;
    for (int head = 0; head < impl_.geometry.kv_heads; ++head) {
      BGTQ_RETURN_IF_ERROR(copy(impl_.WindowTile(sequence, layer, head, tile), impl_.window_tile_bytes,
                                kPageTokens, std::max<int64_t>(state.coded_end - start, 0),
                                std::min<int64_t>(state.length - start, kPageTokens)));
    }
  }
  for (int head = 0; impl_.sink_tile_bytes > 0 && head < impl_.geometry.kv_heads; ++head) {
    BGTQ_RETURN_IF_ERROR(copy(impl_.SinkTile(sequence, layer, head), impl_.sink_tile_bytes,
                              impl_.sink_tile_tokens, 0,
                              std::min<int64_t>(state.length, impl_.options.sinks)));
  }
  return Status::Ok();
}

Status SessionCodec::GatherLayer(const Sequence& sequence, int layer, std::byte* out) const {
  BGTQ_RETURN_IF_ERROR(GatherPages(sequence, layer, out));
  return GatherExact(sequence, layer, out);
}

Status SessionCodec::Scatter(SequenceId id, const SequenceState& state,
                             std::span<const std::span<const std::byte>> tensors) {
  KvCache::Impl::Sequence& sequence = impl_.At(id);
  sequence.state = state;
  if (state.length == 0) return Status::Ok();
  CacheMemory& memory = impl_.memory();
  const KvCache::Impl::TileRange window = impl_.WindowRange(state);
  const bool transpose = TurnsKeys();
  std::vector<std::byte> turned;
  size_t next = 1;  // after the tokens
  for (int layer = 0; layer < impl_.geometry.layers; ++layer) {
    const int64_t bytes = impl_.page_bytes(layer), first = FirstStored(layer, state);
    const int64_t pages = StoredPages(state) - first;
    const std::byte* page_data = pages > 0 ? tensors[next++].data() : nullptr;
    for (int64_t page = 0; page < pages; ++page) {
      const std::byte* data = page_data + page * bytes;
      if (transpose) {
        turned.assign(data, data + bytes);
        for (int head = 0; head < impl_.geometry.kv_heads; ++head) {
          TransposeKeys(ElementBytes(), impl_.geometry.head_dim, kPageTokens,
                        turned.data() + impl_.head_offset[impl_.HeadIndex(layer, head)]);
        }
        data = turned.data();
      }
      BGTQ_RETURN_IF_ERROR(memory.Write(impl_.Page(sequence, layer, first + page), data, bytes));
    }
    if (window.count() > 0) {
      const std::byte* data = tensors[next++].data();
      for (int64_t tile = window.first; tile < window.end; ++tile) {
        for (int head = 0; head < impl_.geometry.kv_heads; ++head, data += impl_.window_tile_bytes) {
          BGTQ_RETURN_IF_ERROR(
              memory.Write(impl_.WindowTile(sequence, layer, head, tile), data, impl_.window_tile_bytes));
        }
      }
    }
    if (impl_.sink_tile_bytes > 0) {
      const std::byte* data = tensors[next++].data();
      for (int head = 0; head < impl_.geometry.kv_heads; ++head, data += impl_.sink_tile_bytes) {
        BGTQ_RETURN_IF_ERROR(
            memory.Write(impl_.SinkTile(sequence, layer, head), data, impl_.sink_tile_bytes));
      }
    }
  }
  return Status::Ok();
}

}  // namespace blockgtq
