// Saving and loading of sessions (session.h).
//
// Tensors, in checksum order: "tokens" I32 [length], then for each layer l
//   layers.l.pages   U8 [pages, page bytes]            that hold codes (tokens, when uncompressed); of a
//                                                      windowed layer those that what follows sees into
//   layers.l.window  U8 [tiles, kv_heads, tile bytes]  that hold the tokens [coded_end, length)
//   layers.l.sinks   U8 [kv_heads, sink tile bytes]
// A tensor without elements is left out. The checksum is the XXH3-64 of the other metadata ("key=value\n" in
// the order of the keys) and of every tensor's bytes.
#include "src/cache/session.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cache/kv_cache_impl.h"
#include "src/formats/safetensors.h"

namespace blockgtq {
namespace {

constexpr std::string_view kFormat = "blockgtq-session";
constexpr std::string_view kVersion = "1";
constexpr int64_t kMaxLength = int64_t{1} << 40;  // keeps page arithmetic far from overflow

using Metadata = std::map<std::string, std::string, std::less<>>;

std::string_view KindName(CacheKind kind) {
  switch (kind) {
    case CacheKind::kPacked:
      return "packed";
    case CacheKind::kHalf:
      return "fp16";
    case CacheKind::kFloat:
      return "fp32";
    case CacheKind::kSimulated:
      return "simulated";
  }
  return "";
}

int64_t PagesOf(int64_t tokens) { return tokens / kPageTokens + (tokens % kPageTokens != 0); }

Status CheckHasSessions(const KvCache& cache, const std::string& name) {
  if (cache.options().kind != CacheKind::kSimulated) return Status::Ok();
  return Status(ErrorCode::kUnsupported,
                fmt::format("{}: recipe {} is simulated and has no sessions; choose a packed recipe", name,
                            cache.options().simulated->recipe));
}

// What a session and its cache must agree on.
Metadata CacheMetadata(const KvCache& cache) {
  const CacheGeometry& geometry = cache.geometry();
  const CacheOptions& options = cache.options();
  Metadata metadata = {{"kind", std::string(KindName(options.kind))},
                       {"plan", cache.plan() != nullptr ? cache.plan()->Hash() : "none"},
                       {"model", options.model},
                       {"sinks", std::to_string(options.sinks)},
                       {"recent", std::to_string(options.recent)},
                       {"layers", std::to_string(geometry.layers)},
                       {"kv_heads", std::to_string(geometry.kv_heads)},
                       {"head_dim", std::to_string(geometry.head_dim)}};
  if (!cache.has_windows()) return metadata;
  metadata["window"] = std::to_string(geometry.window);
  std::string& windowed = metadata["windowed"];  // a digit a layer
  for (int layer = 0; layer < geometry.layers; ++layer) windowed += geometry.is_windowed(layer) ? '1' : '0';
  return metadata;
}

std::string Checksum(const Metadata& metadata, std::span<const std::span<const std::byte>> tensors) {
  XXH3_state_t* state = XXH3_createState();
  if (state == nullptr) return "";  // out of memory: matches no file
  XXH3_64bits_reset(state);
  for (const auto& [key, value] : metadata) {
    if (key == "checksum") continue;
    const std::string line = key + "=" + value + "\n";
    XXH3_64bits_update(state, line.data(), line.size());
  }
  for (const std::span<const std::byte> data : tensors) XXH3_64bits_update(state, data.data(), data.size());
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}", hash);
}

// Zeroes every slot outside [first, end) of an exact tile: K^T [head_dim, tile_tokens], V [tile_tokens,
// head_dim].
void KeepExactSlots(int64_t element_bytes, int head_dim, int tile_tokens, int64_t first, int64_t end,
                    std::byte* tile) {
  const auto zero = [&](int64_t element, int64_t count) {
    std::memset(tile + element * element_bytes, 0, static_cast<size_t>(count * element_bytes));
  };
  for (int64_t dim = 0; dim < head_dim; ++dim) {
    zero(dim * tile_tokens, first);
    zero(dim * tile_tokens + end, tile_tokens - end);
  }
  const int64_t values = int64_t{head_dim} * tile_tokens;
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

// A number as this code writes it: digits without sign or leading zero.
Result<int64_t> ParseNumber(const std::string& name, const Metadata& metadata, std::string_view key) {
  const std::string& text = metadata.find(key)->second;
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > kMaxLength ||
      text != std::to_string(value)) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: session metadata {} is \"{}\", not a number in range", name, key, text));
  }
  return value;
}

Status CheckMetadata(const KvCache& cache, const std::string& name, const Metadata& metadata) {
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != kFormat) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: not a session (metadata format is not {})", name, kFormat));
  }
  Metadata expected = CacheMetadata(cache);
  for (const char* key : {"version", "length", "coded_end", "checksum"}) expected[key];
  for (const auto& [key, value] : expected) {
    if (!metadata.contains(key)) {
      return Status(ErrorCode::kCorruptFile, fmt::format("{}: session metadata lacks {}", name, key));
    }
  }
  if (metadata.find("version")->second != kVersion) {
    return Status(ErrorCode::kUnsupported, fmt::format("{}: session version {}, this build reads {}", name,
                                                       metadata.find("version")->second, kVersion));
  }
  for (const char* key :
       {"kind", "model", "layers", "kv_heads", "head_dim", "window", "windowed", "plan", "sinks", "recent"}) {
    if (!expected.contains(key)) continue;
    const std::string& saved = metadata.find(key)->second;
    if (saved == expected[key]) continue;
    return Status(
        ErrorCode::kMismatch,
        fmt::format("{}: the session's {} is \"{}\", the cache's \"{}\": load it with the options it "
                    "was saved with",
                    name, key, saved, expected[key]));
  }
  return Status::Ok();
}

}  // namespace

/// Moves one sequence between a cache's memory and the tensors of a session.
class SessionCodec {
 public:
  explicit SessionCodec(const KvCache& cache) : impl_(*cache.impl_) {}

  struct Shape {
    std::string name, dtype;
    std::vector<int64_t> shape;
  };
  /// The tensors of a session in this state, in order; those without elements left out.
  std::vector<Shape> Shapes(const SequenceState& state) const;
  /// Checks that a sequence of this cache can be in this state.
  Status CheckState(const std::string& name, const SequenceState& state) const;
  /// Before room is made for an empty sequence: pages that a session in this state lacks are not wanted.
  void StartAt(SequenceId id, const SequenceState& state) { impl_.StartAt(state, impl_.At(id)); }
  /// Copies the layers' tensors of a sequence, in the order of Shapes, slots that hold no token as zeros.
  Status Gather(SequenceId id, std::byte* out) const;
  /// Fills a sequence that has room for state.length tokens from tensors [Shapes], tokens included.
  Status Scatter(SequenceId id, const SequenceState& state,
                 std::span<const std::span<const std::byte>> tensors);

 private:
  int64_t StoredPages(const SequenceState& state) const {
    return PagesOf(impl_.packed() ? state.coded_end : state.length);
  }
  /// The first page of a layer that is stored: what a sequence needs to go on.
  int64_t FirstStored(int layer, const SequenceState& state) const {
    return impl_.FirstNeeded(impl_.GroupOf(layer), state);
  }
  Status GatherPages(const KvCache::Impl::Sequence& sequence, int layer, std::byte*& out) const;
  Status GatherExact(const KvCache::Impl::Sequence& sequence, int layer, std::byte*& out) const;
  int64_t ElementBytes() const { return impl_.options.kind == CacheKind::kFloat ? 4 : 2; }

  KvCache::Impl& impl_;
};

std::vector<SessionCodec::Shape> SessionCodec::Shapes(const SequenceState& state) const {
  std::vector<Shape> shapes;
  if (state.length == 0) return shapes;
  shapes.push_back({"tokens", "I32", {state.length}});
  const int64_t pages = StoredPages(state), tiles = impl_.WindowRange(state).count();
  const int64_t heads = impl_.geometry.kv_heads;
  for (int layer = 0; layer < impl_.geometry.layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const int64_t stored = pages - FirstStored(layer, state);
    if (stored > 0) shapes.push_back({prefix + "pages", "U8", {stored, impl_.page_bytes(layer)}});
    if (tiles > 0) shapes.push_back({prefix + "window", "U8", {tiles, heads, impl_.window_tile_bytes}});
    if (impl_.sink_tile_bytes > 0) {
      shapes.push_back({prefix + "sinks", "U8", {heads, impl_.sink_tile_bytes}});
    }
  }
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

Status SessionCodec::GatherPages(const KvCache::Impl::Sequence& sequence, int layer, std::byte*& out) const {
  const int64_t page_bytes = impl_.page_bytes(layer), first = FirstStored(layer, sequence.state);
  const int64_t pages = StoredPages(sequence.state) - first;
  for (int64_t page = 0; page < pages; ++page) {
    BGTQ_RETURN_IF_ERROR(
        impl_.memory().Read(out + page * page_bytes, impl_.Page(sequence, layer, first + page), page_bytes));
  }
  if (!impl_.packed() && impl_.memory().keys_by_token()) {
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
      KeepExactSlots(ElementBytes(), impl_.geometry.head_dim, kPageTokens, 0, used, last);
    }
  }
  out += pages * page_bytes;
  return Status::Ok();
}

Status SessionCodec::GatherExact(const KvCache::Impl::Sequence& sequence, int layer, std::byte*& out) const {
  const SequenceState& state = sequence.state;
  const KvCache::Impl::TileRange window = impl_.WindowRange(state);
  const auto copy = [&](const std::byte* from, int64_t bytes, int tile_tokens, int64_t first,
                        int64_t end) -> Status {
    BGTQ_RETURN_IF_ERROR(impl_.memory().Read(out, from, bytes));
    KeepExactSlots(2, impl_.geometry.head_dim, tile_tokens, first, end, out);
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

Status SessionCodec::Gather(SequenceId id, std::byte* out) const {
  const KvCache::Impl::Sequence& sequence = impl_.At(id);
  if (sequence.state.length == 0) return Status::Ok();
  for (int layer = 0; layer < impl_.geometry.layers; ++layer) {
    BGTQ_RETURN_IF_ERROR(GatherPages(sequence, layer, out));
    BGTQ_RETURN_IF_ERROR(GatherExact(sequence, layer, out));
  }
  return Status::Ok();
}

Status SessionCodec::Scatter(SequenceId id, const SequenceState& state,
                             std::span<const std::span<const std::byte>> tensors) {
  KvCache::Impl::Sequence& sequence = impl_.At(id);
  sequence.state = state;
  if (state.length == 0) return Status::Ok();
  CacheMemory& memory = impl_.memory();
  const KvCache::Impl::TileRange window = impl_.WindowRange(state);
  const bool transpose = !impl_.packed() && memory.keys_by_token();
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

namespace {

Result<LoadedSession> LoadFromFile(KvCache& cache, const SafetensorsFile& file) {
  BGTQ_RETURN_IF_ERROR(CheckHasSessions(cache, file.name()));
  const Metadata& metadata = file.metadata();
  BGTQ_RETURN_IF_ERROR(CheckMetadata(cache, file.name(), metadata));
  SequenceState state;
  BGTQ_ASSIGN_OR_RETURN(state.length, ParseNumber(file.name(), metadata, "length"));
  BGTQ_ASSIGN_OR_RETURN(state.coded_end, ParseNumber(file.name(), metadata, "coded_end"));
  SessionCodec codec(cache);
  BGTQ_RETURN_IF_ERROR(codec.CheckState(file.name(), state));

  std::vector<std::span<const std::byte>> tensors;
  for (const SessionCodec::Shape& shape : codec.Shapes(state)) {
    BGTQ_ASSIGN_OR_RETURN(const std::span<const std::byte> data,
                          file.Get(shape.name, shape.dtype, shape.shape));
    tensors.push_back(data);
  }
  if (tensors.size() != file.tensors().size()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: {} tensors, a session of {} tokens has {}", file.name(),
                              file.tensors().size(), state.length, tensors.size()));
  }
  const std::string& saved = metadata.find("checksum")->second;
  const std::string computed = Checksum(metadata, tensors);
  if (saved != computed) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: the session's checksum is \"{}\", its content's {}: the file is damaged",
                              file.name(), saved, computed));
  }

  LoadedSession session;
  if (state.length > 0) {
    session.tokens.resize(static_cast<size_t>(state.length));
    std::memcpy(session.tokens.data(), tensors[0].data(), tensors[0].size());
  }
  BGTQ_ASSIGN_OR_RETURN(session.sequence, cache.AddSequence());
  codec.StartAt(session.sequence, state);
  Status filled = cache.Reserve(session.sequence, state.length);
  if (filled.ok()) filled = codec.Scatter(session.sequence, state, tensors);
  if (!filled.ok()) {
    cache.RemoveSequence(session.sequence);
    return filled.WithContext(file.name());
  }
  return session;
}

}  // namespace

Status SaveSession(const KvCache& cache, SequenceId sequence, std::span<const int32_t> tokens,
                   const std::string& path) {
  BGTQ_RETURN_IF_ERROR(CheckHasSessions(cache, path));
  const SequenceState state = cache.state(sequence);
  if (static_cast<int64_t>(tokens.size()) != state.length) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("{}: {} token ids for a sequence of {} tokens",
                                                           path, tokens.size(), state.length));
  }
  const SessionCodec codec(cache);
  const std::vector<SessionCodec::Shape> shapes = codec.Shapes(state);
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const SessionCodec::Shape& shape : shapes) {
    int64_t bytes = 1;
    for (const int64_t extent : shape.shape) bytes *= extent;
    sizes.push_back(shape.dtype == "I32" ? bytes * 4 : bytes);
    total += sizes.back();
  }
  const int64_t token_bytes = static_cast<int64_t>(tokens.size_bytes());
  BGTQ_ASSIGN_OR_RETURN(const CacheRegion copy,
                        CacheRegion::Allocate(HostMemory(), total - token_bytes, path));
  BGTQ_RETURN_IF_ERROR(codec.Gather(sequence, copy.data()));

  std::vector<SafetensorsTensor> tensors;
  std::vector<std::span<const std::byte>> data;
  const std::byte* next = copy.data();
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (i == 0) {
      data.push_back(std::as_bytes(tokens));
    } else {
      data.emplace_back(next, static_cast<size_t>(sizes[i]));
      next += sizes[i];
    }
    tensors.push_back({shapes[i].name, shapes[i].dtype, shapes[i].shape, data.back()});
  }
  Metadata metadata = CacheMetadata(cache);
  metadata["format"] = std::string(kFormat);
  metadata["version"] = std::string(kVersion);
  metadata["length"] = std::to_string(state.length);
  metadata["coded_end"] = std::to_string(state.coded_end);
  metadata["checksum"] = Checksum(metadata, data);
  return WriteSafetensors(path, metadata, tensors);
}

Result<LoadedSession> LoadSession(KvCache& cache, const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  return LoadFromFile(cache, *file);
}

Result<LoadedSession> LoadSessionFromBytes(KvCache& cache, std::span<const std::byte> bytes,
                                           const std::string& name) {
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Parse(bytes, name));
  return LoadFromFile(cache, *file);
}

}  // namespace blockgtq
