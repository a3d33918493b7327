// config.json of transformers 4 and 5 as neutral keys.
#include "src/formats/huggingface_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace blockgtq {
namespace {

constexpr HuggingFaceFamily kFamilies[] = {
    {.model_type = "llama", .architecture = "llama"},
    {.model_type = "mistral", .architecture = "llama"},
    {.model_type = "qwen2", .architecture = "qwen2", .window_needs_flag = true},
    {.model_type = "qwen3", .architecture = "qwen3", .window_needs_flag = true},
    {.model_type = "qwen3_moe", .architecture = "qwen3moe", .window_needs_flag = true},
    {.model_type = "glm4", .architecture = "glm4", .rope_theta = 5e5, .rotary_share = 0.5},
    {.model_type = "phi3", .architecture = "phi3"},
    {.model_type = "olmo2", .architecture = "olmo2"},
    {.model_type = "gemma3_text", .architecture = "gemma3"},
    {.model_type = "deepseek_v2", .architecture = "deepseek2"},
};

std::string ConfigText(const std::string& name) {
  std::ifstream file(std::string(BGTQ_TEST_DATA) + "/models/hf/" + name + "/config.json");
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

HuggingFaceConfig Read(const nlohmann::json& json) {
  auto config = ReadHuggingFaceConfig(json.dump(), "config.json", kFamilies);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? std::move(config).value() : HuggingFaceConfig();
}
HuggingFaceConfig ReadNamed(const std::string& name) { return Read(nlohmann::json::parse(ConfigText(name))); }

Status Refusal(const nlohmann::json& json) {
  return ReadHuggingFaceConfig(json.dump(), "config.json", kFamilies).status();
}

nlohmann::json Plain() {
  return {{"model_type", "llama"},   {"num_hidden_layers", 4},   {"hidden_size", 64},
          {"rms_norm_eps", 1e-5},    {"num_attention_heads", 4}, {"intermediate_size", 80},
          {"vocab_size", 256},       {"head_dim", nullptr},      {"max_position_embeddings", 512},
          {"torch_dtype", "float16"}};
}

using Ints = std::vector<int64_t>;

TEST(HuggingFaceConfig, DimensionsTakeGgufsNames) {
  const HuggingFaceConfig config = ReadNamed("qwen3_moe");
  const ModelKeys& keys = config.keys;
  EXPECT_EQ(config.family->architecture, "qwen3moe");
  EXPECT_EQ(config.tied, false);
  EXPECT_EQ(*keys.Int("block_count"), 2);
  EXPECT_EQ(*keys.Int("embedding_length"), 64);
  EXPECT_EQ(*keys.Int("attention.head_count_kv"), 2);
  EXPECT_EQ(*keys.Int("attention.key_length"), 32);
  EXPECT_EQ(*keys.Int("attention.value_length"), 32);
  EXPECT_EQ(*keys.Real("rope.freq_base"), 1e6);
  EXPECT_EQ(*keys.Int("expert_count"), 8);
  EXPECT_EQ(*keys.Int("expert_used_count"), 2);
  EXPECT_EQ(*keys.Int("expert_feed_forward_length"), 24);
  EXPECT_EQ(*keys.Flag("expert_weights_norm"), true);
  EXPECT_EQ(*keys.Text("feed_forward.activation"), "silu");
  EXPECT_FALSE(keys.Has("expert_layer_step"));
  EXPECT_FALSE(keys.Has("attention.sliding_window"));
}

TEST(HuggingFaceConfig, TheFifthStyleSaysTheSameOfRope) {
  const ModelKeys keys = ReadNamed("qwen3-v5config").keys;
  EXPECT_EQ(*keys.Text("rope.scaling.type"), "yarn");
  EXPECT_EQ(*keys.Real("rope.scaling.factor"), 4.0);
  EXPECT_EQ(*keys.Int("rope.scaling.original_context_length"), 128);
  EXPECT_EQ(*keys.Real("rope.freq_base"), 1e6);
  const ModelKeys plain = ReadNamed("olmo2").keys;
  EXPECT_EQ(*plain.Text("rope.scaling.type"), "none");
  EXPECT_EQ(*plain.Real("rope.freq_base"), 5e5);

  nlohmann::json old_style = Plain(), new_style = Plain();
  old_style["rope_theta"] = 5e5;
  old_style["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  new_style["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}};
  for (const nlohmann::json& json : {old_style, new_style}) {
    const ModelKeys read = Read(json).keys;
    EXPECT_EQ(*read.Text("rope.scaling.type"), "linear");
    EXPECT_EQ(*read.Real("rope.scaling.factor"), 4.0);
    EXPECT_EQ(*read.Real("rope.freq_base"), 5e5);
  }
}

TEST(HuggingFaceConfig, RopeOfEachLayerTypeIsKeptApart) {
  nlohmann::json json = Plain();
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const ModelKeys keys = Read(json).keys;
  EXPECT_EQ(*keys.Real("rope.freq_base"), 1e6);
  EXPECT_EQ(*keys.Real("rope.freq_base_swa"), 1e4);
}

TEST(HuggingFaceConfig, PartialRotationIsCountedInChannels) {
  EXPECT_EQ(*ReadNamed("glm4").keys.Int("rope.dimension_count"), 16);
  nlohmann::json json = Plain();  // without head_dim: 64 / 4
  json["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(*Read(json).keys.Int("rope.dimension_count"), 8);
  json["rope_parameters"]["partial_rotary_factor"] = 1.5;
  EXPECT_EQ(Refusal(json).code(), ErrorCode::kCorruptFile);
  json["rope_parameters"]["partial_rotary_factor"] = "half";
  EXPECT_NE(Refusal(json).message().find("'rope_parameters.partial_rotary_factor' is not a number"),
            std::string::npos);
}

TEST(HuggingFaceConfig, PartialRotationCountsWhereverItStandsAndMustAgree) {
  nlohmann::json json = Plain();
  json["rope_scaling"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(*Read(json).keys.Int("rope.dimension_count"), 8);
  json["partial_rotary_factor"] = 0.25;
  EXPECT_NE(Refusal(json).message().find("'rope_scaling.partial_rotary_factor' differ"), std::string::npos);
  json = Plain();
  json["rope_parameters"]["full_attention"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(*Read(json).keys.Int("rope.dimension_count"), 4);
}

TEST(HuggingFaceConfig, WhatTheFileLeavesOutOfRopeIsTheFamilysDefault) {
  EXPECT_EQ(*Read(Plain()).keys.Real("rope.freq_base"), 1e4);
  EXPECT_FALSE(Read(Plain()).keys.Has("rope.dimension_count"));
  nlohmann::json json = nlohmann::json::parse(ConfigText("glm4"));
  json.erase("rope_theta");
  json.erase("partial_rotary_factor");
  EXPECT_EQ(*Read(json).keys.Real("rope.freq_base"), 5e5);
  EXPECT_EQ(*Read(json).keys.Int("rope.dimension_count"), 16);
  json["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(*Read(json).keys.Int("rope.dimension_count"), 8);
}

TEST(HuggingFaceConfig, MultiHeadLatentAttentionHasItsSizes) {
  const ModelKeys keys = ReadNamed("deepseek_v2").keys;
  EXPECT_EQ(*keys.Int("attention.key_length"), 48);
  EXPECT_EQ(*keys.Int("attention.value_length"), 32);
  EXPECT_EQ(*keys.Int("rope.dimension_count"), 16);
  EXPECT_EQ(*keys.Int("attention.kv_lora_rank"), 32);
  EXPECT_FALSE(keys.Has("attention.q_lora_rank"));
  EXPECT_EQ(*keys.Int("leading_dense_block_count"), 1);
  EXPECT_EQ(*keys.Int("expert_shared_count"), 2);
  EXPECT_EQ(*keys.Real("rope.scaling.mscale_all_dim"), 0.707);
  EXPECT_EQ(*keys.Real("rope.scaling.yarn_beta_fast"), 32.0);
  EXPECT_FALSE(keys.Has("expert_group_count"));  // one group is none
}

TEST(HuggingFaceConfig, WindowsSayWhichLayersHaveThem) {
  const ModelKeys gemma = ReadNamed("gemma3").keys;
  EXPECT_EQ(*gemma.Int("attention.sliding_window"), 16);
  EXPECT_EQ(*gemma.Ints("attention.sliding_window_pattern"), (Ints{1, 1, 0, 1}));
  EXPECT_EQ(*gemma.Real("rope.freq_base_swa"), 1e4);
  EXPECT_NEAR(*gemma.Real("attention.scale"), 1 / std::sqrt(24.0), 1e-12);
  const ModelKeys mistral = ReadNamed("mistral-swa").keys;
  EXPECT_EQ(*mistral.Int("attention.sliding_window"), 16);
  EXPECT_FALSE(mistral.Has("attention.sliding_window_pattern"));  // every layer

  nlohmann::json json = Plain();
  json["model_type"] = "qwen2";
  json["sliding_window"] = 16;
  json["max_window_layers"] = 3;
  EXPECT_FALSE(Read(json).keys.Has("attention.sliding_window"));  // Qwen2's default is not to use it
  json["use_sliding_window"] = true;
  EXPECT_EQ(*Read(json).keys.Ints("attention.sliding_window_pattern"), (Ints{0, 0, 0, 1}));
  json["max_window_layers"] = 4;
  EXPECT_FALSE(Read(json).keys.Has("attention.sliding_window"));
  json["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(*Read(json).keys.Ints("attention.sliding_window_pattern"), (Ints{0, 1, 0, 0}));
  json["layer_types"][0] = "linear_attention";
  EXPECT_NE(Refusal(json).message().find("linear_attention"), std::string::npos);
  json["layer_types"] = {"full_attention"};
  EXPECT_EQ(Refusal(json).code(), ErrorCode::kCorruptFile);
}

TEST(HuggingFaceConfig, WhatNothingReadsIsRefusedInTheFilesWords) {
  nlohmann::json json = Plain();
  json["use_fancy_attention"] = true;
  json["unused_feature"] = false;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2}, {"twist", 1}};
  const ModelKeys keys = Read(json).keys;
  for (const std::string& key : keys.Names()) {
    if (key != "use_fancy_attention" && key != "rope_scaling.twist" && key != "unused_feature") keys.Has(key);
  }
  Status status = keys.CheckAllRead({});
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("config.json: 'rope_scaling.twist'"), std::string::npos)
      << status.message();
  keys.Has("rope_scaling.twist");
  status = keys.CheckAllRead({});
  EXPECT_NE(status.message().find("'use_fancy_attention'"), std::string::npos) << status.message();
  const std::string_view harmless[] = {"use_fancy_attention"};
  EXPECT_TRUE(keys.CheckAllRead(harmless).ok());  // false says nothing
}

TEST(HuggingFaceConfig, MissingAndMistypedKeysAreNamedAsTheFileWouldSpellThem) {
  nlohmann::json json = Plain();
  json.erase("num_hidden_layers");
  json["hidden_size"] = "wide";
  const ModelKeys keys = Read(json).keys;
  EXPECT_NE(keys.Int("block_count").status().message().find("'num_hidden_layers' is missing"),
            std::string::npos);
  EXPECT_NE(keys.Int("embedding_length").status().message().find("'hidden_size' is a string"),
            std::string::npos);
  EXPECT_NE(keys.Int("attention.head_count_kv").status().message().find("num_key_value_heads"),
            std::string::npos);
  EXPECT_NE(keys.Real("rope.scaling.factor").status().message().find("'rope_scaling.factor' is missing"),
            std::string::npos);
}

TEST(HuggingFaceConfig, TwoNamesOfOneSettingMustAgree) {
  nlohmann::json json = Plain();
  json["num_experts"] = 8;
  json["num_local_experts"] = 8;
  EXPECT_EQ(*Read(json).keys.Int("expert_count"), 8);
  json["num_local_experts"] = 4;
  const Status status = Refusal(json);
  EXPECT_EQ(status.code(), ErrorCode::kCorruptFile);
  EXPECT_NE(status.message().find("num_local_experts"), std::string::npos) << status.message();
}

TEST(HuggingFaceConfig, HostileJsonIsOneError) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string(100, '['),
        std::string("{\"model_type\": 3}"), std::string("{\"model_type\": \"llama\", \"architectures\": 1}"),
        std::string("{\"model_type\": \"x\\ny\"}"),
        std::string("{\"model_type\": \"llama\", \"layer_types\": [], \"num_hidden_layers\": 1e300}"),
        std::string("{\"model_type\": \"llama\", \"layer_types\": [], \"num_hidden_layers\": 99999999999}"),
        std::string("{\"model_type\": \"llama\", \"rope_scaling\": 3}")}) {
    const auto config = ReadHuggingFaceConfig(text, "config.json", kFamilies);
    if (config.ok()) continue;
    EXPECT_TRUE(config.status().message().starts_with("config.json: ")) << config.status().message();
    EXPECT_EQ(config.status().message().find('\n'), std::string::npos);
  }
}

TEST(HuggingFaceConfig, TextThatIsNoJsonSaysWhereItCeasesToBe) {
  for (const auto& [text, byte] : {std::pair("{\"a\": 1,\n oops}", "byte 11"),
                                   {"{\"a\": 1e999}", "byte 11"},
                                   {"{\"a\": \"\xff\"}", "byte 8"}}) {
    const Status status = ReadHuggingFaceConfig(text, "config.json", kFamilies).status();
    EXPECT_NE(status.message().find(byte), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace blockgtq
