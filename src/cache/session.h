// Sessions: one sequence of a cache on disk. A safetensors file whose metadata carries the plan's hash, the
// cache's options, the tokens and a checksum; written to a temporary file and renamed, so a crash leaves the
// old file or the new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/kv_cache.h"

namespace blockgtq {

/// Writes what the sequence uses: pages that hold codes (tokens, for uncompressed kinds), window tiles that
/// hold exact tokens, sinks. The same content gives the same bytes.
///
/// tokens: the ids of the sequence, [length].
/// Errors: kInvalidArgument when tokens are not as many as the sequence's, kOutOfMemory (a copy of the data
/// is made), kUnsupported (a simulated cache), kIo (disk full, permissions; the old file is intact).
Status SaveSession(const KvCache& cache, SequenceId sequence, std::span<const int32_t> tokens,
                   const std::string& path);

struct LoadedSession {
  SequenceId sequence = 0;
  std::vector<int32_t> tokens;
};
/// Adds a sequence to the cache and fills it from a session.
/// Errors: kNotFound, kIo, kCorruptFile (checksum, sizes), kUnsupported (a version this build does not know),
/// kMismatch (names plan, model, kind, sinks, recent or geometry and both values), kOutOfMemory. The cache is
/// unchanged then.
Result<LoadedSession> LoadSession(KvCache& cache, const std::string& path);
/// The same from memory. name: begins error messages, as the path does above.
Result<LoadedSession> LoadSessionFromBytes(KvCache& cache, std::span<const std::byte> bytes,
                                           const std::string& name);

}  // namespace blockgtq
