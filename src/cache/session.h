// Sessions: one sequence of a cache on disk. A safetensors file whose metadata carries the plan's hash, the
// cache's options, the tokens and a checksum; written to a temporary file and renamed, so a crash leaves the
// old file or the new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/kv_cache.h"

namespace blockgtq {

/// A sequence on its way to a file. Writing takes a layer's bytes of memory beside the cache, and needs
/// nothing of the cache's books: with a cache in the host's memory it may run on another thread while other
/// sequences change, as long as this one does not and the cache lives.
class PendingSession {
 public:
  /// tokens: the ids of the sequence, [length]; copied.
  /// Errors: kInvalidArgument when tokens are not as many as the sequence's, kUnsupported (a simulated
  /// cache).
  static Result<PendingSession> Of(const KvCache& cache, SequenceId sequence,
                                   std::span<const int32_t> tokens);
  PendingSession(PendingSession&& other) noexcept;
  ~PendingSession();

  int64_t length() const;
  /// Writes what the sequence uses: pages that hold codes (tokens, for uncompressed kinds), window tiles that
  /// hold exact tokens, sinks. The same content gives the same bytes.
  /// Errors: kOutOfMemory, kIo (disk full, permissions; the old file is intact).
  Status Write(const std::string& path) const;

 private:
  struct Impl;
  explicit PendingSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// PendingSession::Of and Write; errors of both, naming the path.
Status SaveSession(const KvCache& cache, SequenceId sequence, std::span<const int32_t> tokens,
                   const std::string& path);

struct LoadedSession {
  SequenceId sequence = 0;
  std::vector<int32_t> tokens;
};

/// A session file whose content was checked against a cache's plan and options. Opening reads only what never
/// changes of the cache, so that another thread may do it.
class SessionFile {
 public:
  /// Errors: kNotFound, kIo, kCorruptFile (checksum, sizes), kUnsupported (a version this build does not
  /// know; a simulated cache), kMismatch (names plan, model, kind, sinks, recent or geometry and both
  /// values).
  static Result<SessionFile> Open(const KvCache& cache, const std::string& path);
  /// The same from memory, which must outlive this. name: begins error messages, as the path does above.
  static Result<SessionFile> FromBytes(const KvCache& cache, std::span<const std::byte> bytes,
                                       const std::string& name);
  SessionFile(SessionFile&& other) noexcept;
  ~SessionFile();

  /// Adds a sequence to the cache that it was opened for and fills it. Errors: kOutOfMemory; the cache is
  /// unchanged then.
  Result<LoadedSession> Load(KvCache& cache) const;

 private:
  struct Impl;
  explicit SessionFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// SessionFile::Open and Load; FromBytes and Load.
Result<LoadedSession> LoadSession(KvCache& cache, const std::string& path);
Result<LoadedSession> LoadSessionFromBytes(KvCache& cache, std::span<const std::byte> bytes,
                                           const std::string& name);

}  // namespace blockgtq
