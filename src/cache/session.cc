// Saving and loading of sessions (session.h).
//
// The checksum is the XXH3-64 of the other metadata ("key=value\n" in the order of the keys) and of every
// tensor's bytes in session_codec.h's order.
#include "src/cache/session.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cache/session_codec.h"
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
  Metadata metadata{{"kind", std::string(KindName(options.kind))},
                    {"plan", cache.plan() != nullptr ? cache.plan()->Hash() : "none"},
                    {"model", options.model},
                    {"sinks", std::to_string(options.sinks)},
                    {"recent", std::to_string(options.recent)},
                    {"layers", std::to_string(geometry.layers)},
                    {"kv_heads", std::to_string(geometry.kv_heads)},
                    {"head_dim", std::to_string(geometry.head_dim)}};
  if (geometry.latent_dims > 0) metadata["latent_dims"] = std::to_string(geometry.latent_dims);
  if (!cache.has_windows()) return metadata;
  metadata["window"] = std::to_string(geometry.window);
  std::string& windowed = metadata["windowed"];  // a digit a layer
  for (int layer = 0; layer < geometry.layers; ++layer) windowed += geometry.is_windowed(layer) ? '1' : '0';
  return metadata;
}

/// The checksum of a session, its bytes in pieces.
class Checksum {
 public:
  explicit Checksum(const Metadata& metadata) : state_(XXH3_createState()) {
    if (state_ == nullptr) return;
    XXH3_64bits_reset(state_);
    for (const auto& [key, value] : metadata) {
      if (key == "checksum") continue;
      const std::string line = key + "=" + value + "\n";
      Add(std::as_bytes(std::span(line)));
    }
  }
  ~Checksum() { XXH3_freeState(state_); }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void Add(std::span<const std::byte> bytes) {
    if (state_ != nullptr) XXH3_64bits_update(state_, bytes.data(), bytes.size());
  }
  /// Empty when there was no memory for it: matches no file.
  std::string Text() const {
    return state_ != nullptr ? fmt::format("{:016x}", XXH3_64bits_digest(state_)) : std::string();
  }

 private:
  XXH3_state_t* state_;
};

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
  const auto value = [](const Metadata& of, const char* key) {
    const auto found = of.find(key);
    return found != of.end() ? found->second : std::string("none");  // latents, windows
  };
  for (const char* key : {"kind", "model", "layers", "kv_heads", "head_dim", "latent_dims", "window",
                          "windowed", "plan", "sinks", "recent"}) {
    const std::string saved = value(metadata, key), wanted = value(expected, key);
    if (saved == wanted) continue;
    return Status(
        ErrorCode::kMismatch,
        fmt::format("{}: the session's {} is \"{}\", the cache's \"{}\": load it with the options it "
                    "was saved with",
                    name, key, saved, wanted));
  }
  return Status::Ok();
}

}  // namespace

struct PendingSession::Impl {
  const KvCache& cache;
  const SessionCodec::Sequence& sequence;
  std::vector<int32_t> tokens;
};

PendingSession::PendingSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PendingSession::PendingSession(PendingSession&& other) noexcept = default;
PendingSession::~PendingSession() = default;

Result<PendingSession> PendingSession::Of(const KvCache& cache, SequenceId sequence,
                                          std::span<const int32_t> tokens) {
  BGTQ_RETURN_IF_ERROR(CheckHasSessions(cache, "session"));
  const int64_t length = cache.state(sequence).length;
  if (static_cast<int64_t>(tokens.size()) != length) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("session: {} token ids for a sequence of {} tokens", tokens.size(), length));
  }
  return PendingSession(
      std::make_unique<Impl>(Impl{cache, SessionCodec(cache).At(sequence), {tokens.begin(), tokens.end()}}));
}

int64_t PendingSession::length() const { return static_cast<int64_t>(impl_->tokens.size()); }

Status PendingSession::Write(const std::string& path) const {
  const SessionCodec codec(impl_->cache);
  const SequenceState state = impl_->sequence.state;
  const std::vector<SafetensorsShape> shapes = codec.Shapes(state);
  std::vector<int64_t> sizes;
  for (const SafetensorsShape& shape : shapes) {
    int64_t bytes = SafetensorsDtypeBytes(shape.dtype);
    for (const int64_t extent : shape.shape) bytes *= extent;
    sizes.push_back(bytes);
  }
  // After the tokens come each layer's tensors: fewer in a windowed layer that has no page to store.
  std::map<size_t, int> layer_at;  // by the layer's first tensor
  int64_t largest = 0;
  size_t end = 1;
  for (int layer = 0; !shapes.empty() && layer < codec.layers(); ++layer) {
    const size_t first = std::exchange(end, end + codec.LayerShapes(state, layer).size());
    if (first < end) layer_at[first] = layer;
    largest = std::max(largest, std::accumulate(sizes.begin() + first, sizes.begin() + end, int64_t{0}));
  }
  BGTQ_ASSIGN_OR_RETURN(const CacheRegion buffer, CacheRegion::Allocate(HostMemory(), largest, path));
  // Tensors are asked for in order; the first of a layer brings the layer.
  const std::byte* next = nullptr;
  const auto make = [&](size_t tensor, const ByteSink& sink) -> Status {
    if (tensor == 0) return sink(std::as_bytes(std::span(impl_->tokens)));
    if (const auto at = layer_at.find(tensor); at != layer_at.end()) {
      BGTQ_RETURN_IF_ERROR(codec.GatherLayer(impl_->sequence, at->second, buffer.data()));
      next = buffer.data();
    }
    const auto bytes = static_cast<size_t>(sizes[tensor]);
    return sink({std::exchange(next, next + bytes), bytes});
  };

  Metadata metadata = CacheMetadata(impl_->cache);
  metadata["format"] = std::string(kFormat);
  metadata["version"] = std::string(kVersion);
  metadata["length"] = std::to_string(state.length);
  metadata["coded_end"] = std::to_string(state.coded_end);
  Checksum checksum(metadata);  // it stands before the data in the file: the data is gathered twice
  for (size_t i = 0; i < shapes.size(); ++i) {
    BGTQ_RETURN_IF_ERROR(make(i, [&](std::span<const std::byte> part) {
      checksum.Add(part);
      return Status::Ok();
    }));
  }
  metadata["checksum"] = checksum.Text();
  return WriteSafetensors(path, metadata, shapes, make);
}

Status SaveSession(const KvCache& cache, SequenceId sequence, std::span<const int32_t> tokens,
                   const std::string& path) {
  Result<PendingSession> session = PendingSession::Of(cache, sequence, tokens);
  if (!session.ok()) return session.status().WithContext(path);
  return session->Write(path);
}

struct SessionFile::Impl {
  std::unique_ptr<SafetensorsFile> file;
  SequenceState state;
  std::vector<std::span<const std::byte>> tensors;

  static Result<std::unique_ptr<Impl>> Check(const KvCache& cache, std::unique_ptr<SafetensorsFile> file);
};

SessionFile::SessionFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SessionFile::SessionFile(SessionFile&& other) noexcept = default;
SessionFile::~SessionFile() = default;

Result<std::unique_ptr<SessionFile::Impl>> SessionFile::Impl::Check(const KvCache& cache,
                                                                    std::unique_ptr<SafetensorsFile> file) {
  const std::string& name = file->name();
  BGTQ_RETURN_IF_ERROR(CheckHasSessions(cache, name));
  const Metadata& metadata = file->metadata();
  BGTQ_RETURN_IF_ERROR(CheckMetadata(cache, name, metadata));
  auto session = std::make_unique<Impl>();
  SequenceState& state = session->state;
  BGTQ_ASSIGN_OR_RETURN(state.length, ParseNumber(name, metadata, "length"));
  BGTQ_ASSIGN_OR_RETURN(state.coded_end, ParseNumber(name, metadata, "coded_end"));
  const SessionCodec codec(cache);
  BGTQ_RETURN_IF_ERROR(codec.CheckState(name, state));

  for (const SafetensorsShape& shape : codec.Shapes(state)) {
    BGTQ_ASSIGN_OR_RETURN(const std::span<const std::byte> data,
                          file->Get(shape.name, shape.dtype, shape.shape));
    session->tensors.push_back(data);
  }
  if (session->tensors.size() != file->tensors().size()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: {} tensors, a session of {} tokens has {}", name, file->tensors().size(),
                              state.length, session->tensors.size()));
  }
  Checksum checksum(metadata);
  for (const std::span<const std::byte> data : session->tensors) checksum.Add(data);
  const std::string& saved = metadata.find("checksum")->second;
  if (saved != checksum.Text()) {
    return Status(ErrorCode::kCorruptFile,
                  fmt::format("{}: the session's checksum is \"{}\", its content's {}: the file is damaged",
                              name, saved, checksum.Text()));
  }
  session->file = std::move(file);
  return session;
}

Result<SessionFile> SessionFile::Open(const KvCache& cache, const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<Impl> session, Impl::Check(cache, std::move(file)));
  return SessionFile(std::move(session));
}

Result<SessionFile> SessionFile::FromBytes(const KvCache& cache, std::span<const std::byte> bytes,
                                           const std::string& name) {
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Parse(bytes, name));
  BGTQ_ASSIGN_OR_RETURN(std::unique_ptr<Impl> session, Impl::Check(cache, std::move(file)));
  return SessionFile(std::move(session));
}

Result<LoadedSession> SessionFile::Load(KvCache& cache) const {
  const SequenceState& state = impl_->state;
  LoadedSession session;
  if (state.length > 0) {
    session.tokens.resize(static_cast<size_t>(state.length));
    std::memcpy(session.tokens.data(), impl_->tensors[0].data(), impl_->tensors[0].size());
  }
  BGTQ_ASSIGN_OR_RETURN(session.sequence, cache.AddSequence());
  SessionCodec codec(cache);
  codec.StartAt(session.sequence, state);
  Status filled = cache.Reserve(session.sequence, state.length);
  if (filled.ok()) filled = codec.Scatter(session.sequence, state, impl_->tensors);
  if (!filled.ok()) {
    cache.RemoveSequence(session.sequence);
    return filled.WithContext(impl_->file->name());
  }
  return session;
}

Result<LoadedSession> LoadSession(KvCache& cache, const std::string& path) {
  BGTQ_ASSIGN_OR_RETURN(const SessionFile file, SessionFile::Open(cache, path));
  return file.Load(cache);
}

Result<LoadedSession> LoadSessionFromBytes(KvCache& cache, std::span<const std::byte> bytes,
                                           const std::string& name) {
  BGTQ_ASSIGN_OR_RETURN(const SessionFile file, SessionFile::FromBytes(cache, bytes, name));
  return file.Load(cache);
}

}  // namespace blockgtq
