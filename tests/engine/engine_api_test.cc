// The embedding API: conversations, sessions on disk, errors.
#include <filesystem>
#include <fstream>

#include "blockgtq/engine.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

class EngineApi : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("blockgtq_api_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::create_directories(folder_);
    std::filesystem::copy_file(TinyModelPath("llama"), folder_ / "tiny.gguf",
                               std::filesystem::copy_options::overwrite_existing);
    config_.model_path = folder_ / "tiny.gguf";
    config_.threads = 2;
    config_.context_tokens = 512;
    greedy_.temperature = 0;
    greedy_.max_new_tokens = 12;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Engine> Open() {
    auto engine = Engine::Open(config_);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(engine).value() : nullptr;
  }

  std::filesystem::path folder_;
  EngineConfig config_;
  GenerationConfig greedy_;
};

TEST_F(EngineApi, PiecesJoinToTheTextAndTheCacheReportsWhatItHolds) {
  const auto engine = Open();
  const ConversationId id = *engine->NewConversation();
  std::string pieces;
  const auto answer = engine->Complete(id, "hello there", greedy_, [&](std::string_view p) { pieces += p; });
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->text, pieces);
  EXPECT_EQ(answer->new_tokens, 12);
  const auto use = engine->Use(id);
  ASSERT_TRUE(use.ok());
  EXPECT_EQ(use->tokens,
            answer->prompt_tokens + answer->new_tokens - 1);  // the last one has not been run yet
  EXPECT_GT(use->bytes, 0);
  EXPECT_GT(use->bytes_fp16, 0);
}

TEST_F(EngineApi, ASavedConversationGoesOnAsIfNothingHadHappened) {
  const std::string file = folder_ / "conversation.session";
  std::string expected;
  {
    const auto engine = Open();
    const ConversationId id = *engine->NewConversation();
    ASSERT_TRUE(engine->Complete(id, std::string(150, 'x') + " the", greedy_, {}).ok());
    ASSERT_TRUE(engine->Save(id, file).ok());
    const auto more = engine->Complete(id, " and the", greedy_, {});
    ASSERT_TRUE(more.ok()) << more.status().message();
    expected = more->text;
  }
  const auto engine = Open();
  const auto id = engine->Load(file);
  ASSERT_TRUE(id.ok()) << id.status().message();
  const auto more = engine->Complete(*id, " and the", greedy_, {});
  ASSERT_TRUE(more.ok()) << more.status().message();
  EXPECT_EQ(more->text, expected);
}

TEST_F(EngineApi, ASessionOfAnotherPlanOrKindIsRefused) {
  const std::string file = folder_ / "conversation.session";
  {
    const auto engine = Open();
    const ConversationId id = *engine->NewConversation();
    ASSERT_TRUE(engine->Complete(id, "hello", greedy_, {}).ok());
    ASSERT_TRUE(engine->Save(id, file).ok());
  }
  config_.k_bits = 4;
  EXPECT_EQ(Open()->Load(file).status().code(), ErrorCode::kMismatch);
  config_.recipe = "fp16";
  EXPECT_EQ(Open()->Load(file).status().code(), ErrorCode::kMismatch);
}

TEST_F(EngineApi, ConversationsDoNotSeeEachOther) {
  const auto engine = Open();
  const ConversationId alone = *engine->NewConversation();
  const std::string expected = engine->Complete(alone, "one two three", greedy_, {})->text;
  const ConversationId first = *engine->NewConversation(), second = *engine->NewConversation();
  ASSERT_TRUE(engine->Complete(first, "something else", greedy_, {}).ok());
  EXPECT_EQ(engine->Complete(second, "one two three", greedy_, {})->text, expected);
}

TEST_F(EngineApi, ARefusedCallLeavesTheConversationAsItWas) {
  const auto engine = Open();
  const ConversationId id = *engine->NewConversation(), twin = *engine->NewConversation();
  ASSERT_TRUE(engine->Complete(id, "one two", greedy_, {}).ok());
  ASSERT_TRUE(engine->Complete(twin, "one two", greedy_, {}).ok());
  GenerationConfig bad = greedy_;
  bad.temperature = -1;
  EXPECT_FALSE(engine->Complete(id, " three", bad, {}).ok());
  EXPECT_FALSE(engine->Complete(id, std::string(900, 'x'), greedy_, {}).ok());  // more than the cache holds
  EXPECT_EQ(engine->Complete(id, " three", greedy_, {})->text,
            engine->Complete(twin, " three", greedy_, {})->text);
}

TEST_F(EngineApi, MistakesGetOneClearError) {
  const auto engine = Open();
  const ConversationId id = *engine->NewConversation();
  EXPECT_EQ(engine->Complete(id, "", greedy_, {}).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->Chat(id, "hi", greedy_, {}).status().code(), ErrorCode::kUnsupported);  // no template
  greedy_.temperature = -1;
  EXPECT_EQ(engine->Complete(id, "a", greedy_, {}).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(engine->EndConversation(id).ok());
  EXPECT_EQ(engine->EndConversation(id).code(), ErrorCode::kNotFound);
  EXPECT_EQ(engine->Use(id).status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(engine->Load(folder_ / "none").status().code(), ErrorCode::kNotFound);
  config_.model_path = folder_ / "none.gguf";
  EXPECT_EQ(Engine::Open(config_).status().code(), ErrorCode::kNotFound);
}

TEST(EngineApiOnARealModel, ASecondTurnReusesTheFirst) {
  const std::string path = RealModelPath(kSmolLm2);
  if (path.empty()) GTEST_SKIP() << kSmolLm2 << " is not here: scripts/fetch_models.sh smollm2-135m";
  EngineConfig config;
  config.model_path = path;
  config.threads = 2;
  config.recipe = "fp16";  // no plan file beside the user's model
  config.context_tokens = 1024;
  auto engine = Engine::Open(config);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const ConversationId id = *(*engine)->NewConversation();
  GenerationConfig greedy;
  greedy.temperature = 0;
  greedy.max_new_tokens = 40;
  const auto first = (*engine)->Chat(id, "What is the capital of France?", greedy, {});
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_GT(first->new_tokens, 2) << first->text;
  const auto second = (*engine)->Chat(id, "And of Italy?", greedy, {});
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_LT(second->prompt_tokens, first->prompt_tokens) << "the first turn should be in the cache already";
}

}  // namespace
}  // namespace blockgtq::test
