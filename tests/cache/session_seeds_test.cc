// The seeds of fuzz/session_fuzzer.cc are sessions that its caches accept: a stale seed would leave the
// fuzzer at the header without a word.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "fuzz/session_caches.h"
#include "src/cache/session.h"

namespace blockgtq {
namespace {

TEST(SessionSeeds, EachIsAcceptedByTheCacheItNames) {
  const Plan plan = SmallSessionPlan();
  int loaded_by[kSessionCaches] = {};
  for (const auto& entry : std::filesystem::directory_iterator(BGTQ_SOURCE_DIR "/fuzz/corpus/session")) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    ASSERT_GT(bytes.size(), 1u);
    const int index = bytes[0];
    ASSERT_GE(index, 0);
    ASSERT_LT(index, kSessionCaches);
    const std::unique_ptr<KvCache> cache = MakeSessionCache(index, plan);
    const auto loaded =
        LoadSessionFromBytes(*cache, std::as_bytes(std::span(bytes.data() + 1, bytes.size() - 1)), "seed");
    EXPECT_TRUE(loaded.ok()) << loaded.status().message() << ": run fuzz/make_session_seeds.cc again";
    if (loaded.ok() && !loaded->tokens.empty()) ++loaded_by[index];
  }
  for (int index = 0; index < kSessionCaches; ++index) EXPECT_GE(loaded_by[index], 1) << "cache " << index;
}

}  // namespace
}  // namespace blockgtq
