// Sessions: one sequence of a cache on disk. A safetensors file whose metadata carries the plan's hash, the
// cache's options, the tokens and a checksum; written to a temporary file and renamed, so a crash leaves the
// old file or the new.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blockgtq/status.h"
#include "src/cache/kv_cache.h"

namespace blockgtq {

/// tokens: the ids of the sequence, [length]. Errors: kIo (disk full, permissions; the old file is intact).
Status SaveSession(const KvCache& cache, SequenceId sequence, std::span<const int32_t> tokens,
                   const std::string& path);

struct LoadedSession {
  SequenceId sequence = 0;
  std::vector<int32_t> tokens;
};
/// Errors: kNotFound, kCorruptFile (checksum, sizes), kMismatch (names plan, kind, sinks, recent or geometry
/// and both values), kOutOfMemory. The cache is unchanged then.
Result<LoadedSession> LoadSession(KvCache& cache, const std::string& path);

}  // namespace blockgtq
