// Writes the seeds of session_fuzzer: a few small valid sessions for each of its caches, the first byte
// naming the cache. Run it again when the session format, or what a plan's hash covers, changes:
//   cmake --build build-fuzz --target make_session_seeds && build-fuzz/make_session_seeds fuzz/corpus/session
// tests/cache/session_seeds_test.cc fails when the seeds have become stale.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "fuzz/session_caches.h"
#include "src/cache/session.h"
#include "src/codec/record.h"

namespace blockgtq {
namespace {

struct Seed {
  const char* name;
  int cache;  // of MakeSessionCache
  SequenceState state;
};

// States of each shape of file: with and without pages, a window, a page that is partly full.
constexpr Seed kSeeds[] = {
    {"window_empty", 0, {0, 0}},    {"window_only", 0, {20, 0}},         {"window_all_coded", 0, {64, 64}},
    {"window_pages", 0, {130, 64}}, {"window_rolled_back", 0, {80, 70}}, {"coded_empty", 1, {0, 0}},
    {"coded_part", 1, {9, 9}},      {"coded_pages", 1, {150, 150}},      {"fp16_empty", 2, {0, 0}},
    {"fp16_part", 2, {10, 0}},      {"fp16_pages", 2, {70, 0}},          {"fp32_part", 3, {10, 0}},
};

// Any bytes make valid codes and numbers; these are finite as fp16 and fp32.
void Fill(std::byte* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 7 + i / 64) & 0x3f);
}

// Gives a new sequence `state.length` tokens whose bytes are all set.
void FillSequence(KvCache& cache, SequenceId id, const SequenceState& state) {
  const CacheOptions& options = cache.options();
  const bool packed = options.kind == CacheKind::kPacked;
  const int dim = cache.geometry().head_dim;
  const int64_t page_bytes = packed ? RecordLayout::For(cache.plan()->heads[0]).bytes
                                    : ExactTileBytes(options.kind == CacheKind::kHalf, dim, kPageTokens);
  const int64_t pages = (state.length + kPageTokens - 1) / kPageTokens;
  for (int64_t page = 0; page < pages; ++page) {
    Fill(cache.PageHead(id, 0, 0, page), page_bytes);
    if (cache.window_tiles() > 0) {
      Fill(cache.WindowTile(id, 0, 0, page), ExactTileBytes(true, dim, kPageTokens));
    }
  }
  if (cache.sink_tile_tokens() > 0) {
    Fill(cache.SinkTile(id, 0, 0), ExactTileBytes(true, dim, cache.sink_tile_tokens()));
  }
}

Status Write(const Seed& seed, const std::string& path) {
  const Plan plan = SmallSessionPlan();
  const std::unique_ptr<KvCache> cache = MakeSessionCache(seed.cache, plan);
  BGTQ_ASSIGN_OR_RETURN(const SequenceId id, cache->AddSequence());
  BGTQ_RETURN_IF_ERROR(cache->Reserve(id, seed.state.length));
  FillSequence(*cache, id, seed.state);
  cache->Commit(id, seed.state.length, seed.state.coded_end);
  std::vector<int32_t> tokens(static_cast<size_t>(seed.state.length));
  std::iota(tokens.begin(), tokens.end(), 1);
  BGTQ_RETURN_IF_ERROR(SaveSession(*cache, id, tokens, path));

  std::ifstream in(path, std::ios::binary);
  const std::string session((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  in.close();
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.put(static_cast<char>(seed.cache));
  out.write(session.data(), static_cast<std::streamsize>(session.size()));
  out.flush();
  if (!out) return Status(ErrorCode::kIo, fmt::format("{}: writing failed", path));
  return Status::Ok();
}

}  // namespace
}  // namespace blockgtq

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_session_seeds FOLDER\n");
    return 2;
  }
  std::error_code error;
  std::filesystem::create_directories(argv[1], error);
  for (const blockgtq::Seed& seed : blockgtq::kSeeds) {
    const blockgtq::Status status = blockgtq::Write(seed, std::string(argv[1]) + "/" + seed.name);
    if (!status.ok()) {
      std::fprintf(stderr, "make_session_seeds: %s\n", status.message().c_str());
      return 1;
    }
  }
  return 0;
}
