// Several sequences at a depth that was partly copied: the rows say so, and the cache is left as it was
// found.
#include "src/eval/speed.h"

#include <gtest/gtest.h>

#include "tests/engine/test_models.h"

namespace blockgtq {
namespace {

TEST(Speed, SequencesAndCopiedDepths) {
  const auto model = test::OpenModel(test::TinyModelPath("llama"));
  CacheOptions cache;
  cache.kind = CacheKind::kHalf;
  cache.max_tokens = 3 * 512;
  const auto context = test::MakeContext(*model, cache);
  const std::vector<Token> text = {1, 2, 3, 4, 5};
  SpeedOptions options;
  options.prompt = 20;
  options.generate = 4;
  options.sequences = 3;
  options.depths = {0, 256};
  options.fill = 128;
  options.context = 512;
  options.repetitions = 2;
  const auto rows = MeasureSpeed(*context, text, options);
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  ASSERT_EQ(rows->size(), 4u);
  for (const SpeedRow& row : *rows) {
    EXPECT_GT(row.tokens_per_second, 0);
    const bool decode = row.test == "tg4";
    EXPECT_EQ(row.sequences, decode ? 3 : 1) << row.test;
    EXPECT_EQ(row.tokens, decode ? 4 : 20);
    const int64_t pages = (row.depth + row.tokens + 63) / 64;
    EXPECT_EQ(row.kv_bytes, row.sequences * context->cache().HalfBytes(pages * 64)) << row.test << row.depth;
  }
  EXPECT_EQ(context->cache().free_tokens(), context->cache().options().max_tokens)
      << "every sequence is gone";

  options.fill = 100;  // 156 tokens short of the depth: no whole pages
  EXPECT_EQ(MeasureSpeed(*context, text, options).status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace blockgtq
