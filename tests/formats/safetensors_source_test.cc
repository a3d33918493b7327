// Safetensors models as a ModelSource: names, parts, values that GGUF defines otherwise, sharded indexes.
#include "src/formats/safetensors_source.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "src/formats/huggingface_names.h"
#include "src/formats/safetensors.h"
#include "src/formats/safetensors_index.h"
#include "tests/formats/files.h"

namespace blockgtq {
namespace {

constexpr HuggingFaceTensorName kGemmaTensors[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight"}};
constexpr HuggingFaceFamily kPlain = {.model_type = "plain", .architecture = "llama"};
constexpr HuggingFaceFamily kGemma = {
    .model_type = "gemma", .architecture = "gemma3", .norms_add_one = true, .layer_tensors = kGemmaTensors};
constexpr HuggingFaceFamily kFamilies[] = {kPlain, kGemma};

TEST(HuggingFaceNames, BecomeGgufs) {
  const auto name = [](const HuggingFaceFamily& family, const char* stored) {
    const GgufTensorName n = ToGgufName(family, stored);
    return n.expert < 0 ? n.name : n.name + "[" + std::to_string(n.expert) + "]";
  };
  EXPECT_EQ(name(kPlain, "lm_head.weight"), "output.weight");
  EXPECT_EQ(name(kPlain, "model.layers.0.input_layernorm.weight"), "blk.0.attn_norm.weight");
  EXPECT_EQ(name(kPlain, "model.layers.11.self_attn.q_proj.bias"), "blk.11.attn_q.bias");
  EXPECT_EQ(name(kPlain, "model.layers.3.mlp.gate.weight"), "blk.3.ffn_gate_inp.weight");
  EXPECT_EQ(name(kPlain, "model.layers.3.mlp.experts.17.up_proj.weight"), "blk.3.ffn_up_exps.weight[17]");
  EXPECT_EQ(name(kPlain, "model.layers.3.post_attention_layernorm.weight"), "blk.3.ffn_norm.weight");
  EXPECT_EQ(name(kGemma, "model.layers.3.post_attention_layernorm.weight"),
            "blk.3.post_attention_norm.weight");
  for (const char* unknown :
       {"", "model.layers.", "model.layers.3", "model.layers.3.", "model.layers.-1.input_layernorm.weight",
        "model.layers.01.input_layernorm.weight", "model.layers.99999999999.input_layernorm.weight",
        "model.layers.3.mlp.experts.1.banana.weight", "model.layers.3.banana.weight", "blk"}) {
    EXPECT_EQ(name(kPlain, unknown), unknown);
  }
}

TEST(HuggingFaceNames, OfATensorThatIsMissing) {
  EXPECT_EQ(StoredNames(kPlain, "token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(StoredNames(kPlain, "blk.11.attn_q.bias"), "model.layers.11.self_attn.q_proj.bias");
  EXPECT_EQ(StoredNames(kPlain, "blk.3.ffn_up.weight"),
            "model.layers.3.mlp.up_proj.weight or model.layers.3.mlp.gate_up_proj.weight");
  EXPECT_EQ(StoredNames(kPlain, "blk.3.ffn_up_exps.weight"), "model.layers.3.mlp.experts.0.up_proj.weight");
  EXPECT_EQ(StoredNames(kGemma, "blk.3.post_attention_norm.weight"),
            "model.layers.3.post_attention_layernorm.weight or "
            "model.layers.3.post_self_attn_layernorm.weight");
  EXPECT_EQ(StoredNames(kGemma, "blk.3.ffn_norm.weight"), "model.layers.3.pre_feedforward_layernorm.weight");
  EXPECT_EQ(StoredNames(kPlain, "rope_freqs.weight"), "rope_freqs.weight");
}

/// A small model that is written tensor by tensor.
class SmallModel : public testing::Test {
 protected:
  void Add(const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
    values_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
    tensors_.push_back({name, "F32", std::move(shape), std::as_bytes(std::span(*values_.back()))});
  }
  Result<std::unique_ptr<ModelSource>> Open(const std::string& type, const std::string& more = "") {
    EXPECT_TRUE(WriteSafetensors(folder_.File("model.safetensors"), {}, tensors_).ok());
    std::ofstream(folder_.File("config.json")) << "{\"model_type\": \"" << type << "\"" << more << "}";
    return OpenSafetensorsSource(folder_.File(""), kFamilies);
  }
  static std::vector<float> Row(const TensorView& view, int64_t row) {
    std::vector<float> values(static_cast<size_t>(view.cols));
    DequantizeRow(view, row, values.data());
    return values;
  }
  TemporaryFolder folder_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
  std::vector<SafetensorsTensor> tensors_;
};

using Floats = std::vector<float>;

TEST_F(SmallModel, RowsAndElementsAreViewsOfAFusedTensor) {
  Add("model.layers.0.mlp.gate_up_proj.weight", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  Add("model.layers.0.self_attn.qkv_proj.bias", {3}, {7, 8, 9});
  const auto source = Open("plain");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const ModelTensor* fused = (*source)->Find("blk.0.ffn_up.weight");
  ASSERT_NE(fused, nullptr);
  const auto up = fused->Rows(2, 2);
  ASSERT_TRUE(up.ok());
  EXPECT_EQ(up->rows, 2);
  EXPECT_EQ(Row(*up, 0), (Floats{5, 6}));
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 2}, {-1, 1}, {0, 0}, {INT64_MAX, INT64_MAX}, {0, INT64_MAX}}) {
    EXPECT_EQ(fused->Rows(first, count).status().code(), ErrorCode::kInvalidArgument)
        << first << " " << count;
  }
  const ModelTensor* bias = (*source)->Find("blk.0.attn_qkv.bias");
  EXPECT_EQ(Row(*bias->Elements(1, 2), 0), (Floats{8, 9}));
  EXPECT_EQ(bias->Elements(2, 2).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(fused->Elements(0, 1).status().code(), ErrorCode::kUnsupported);
}

TEST_F(SmallModel, ExpertsAreRowsOfOneTensor) {
  for (int e : {1, 0, 2, 10, 3, 4, 5, 6, 7, 8, 9}) {  // sorted as numbers, not as text
    const auto v = static_cast<float>(10 * e);
    Add("model.layers.1.mlp.experts." + std::to_string(e) + ".down_proj.weight", {2, 2},
        {v, v + 1, v + 2, v + 3});
  }
  const auto source = Open("plain");
  ASSERT_TRUE(source.ok()) << source.status().message();
  const ModelTensor* experts = (*source)->Find("blk.1.ffn_down_exps.weight");
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(experts->shape, (std::vector<int64_t>{11, 2, 2}));
  EXPECT_EQ(experts->rows, 22);
  EXPECT_EQ(Row(*experts->Rows(20, 2), 1), (Floats{102, 103}));
  EXPECT_EQ(experts->Rows(1, 2).status().code(), ErrorCode::kUnsupported);  // of two experts
}

TEST_F(SmallModel, AMissingOrOddExpertIsNamed) {
  Add("model.layers.0.mlp.experts.0.up_proj.weight", {1, 2}, {0, 0});
  Add("model.layers.0.mlp.experts.2.up_proj.weight", {1, 2}, {0, 0});
  EXPECT_NE(Open("plain").status().message().find("expert 1"), std::string::npos);
  Add("model.layers.0.mlp.experts.1.up_proj.weight", {2, 1}, {0, 0});
  const Status status = Open("plain").status();
  EXPECT_EQ(status.code(), ErrorCode::kCorruptFile);
  EXPECT_NE(status.message().find("experts.1.up_proj"), std::string::npos) << status.message();
}

TEST_F(SmallModel, NormsThatAddOneHoldTheSum) {
  Add("model.norm.weight", {3}, {0, 0.5, -1});
  Add("model.layers.0.post_attention_layernorm.weight", {2}, {1, 2});
  Add("model.embed_tokens.weight", {1, 2}, {1, 2});
  const auto source = Open("gemma");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(Row((*source)->Find("output_norm.weight")->parts[0], 0), (Floats{1, 1.5, 0}));
  EXPECT_EQ(Row((*source)->Find("blk.0.post_attention_norm.weight")->parts[0], 0), (Floats{2, 3}));
  EXPECT_EQ(Row((*source)->Find("token_embd.weight")->parts[0], 0), (Floats{1, 2}));
}

TEST_F(SmallModel, TensorsThatNobodyTakesAreNamed) {
  Add("model.norm.weight", {1}, {0});
  Add("model.layers.0.secret.weight", {1}, {0});
  Add("model.layers.0.self_attn.rotary_emb.inv_freq", {1}, {1});  // older files; what the configuration says
  const auto source = Open("plain");
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_NE((*source)->Take("output_norm.weight"), nullptr);
  const Status status = (*source)->CheckAllTaken();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("model.layers.0.secret.weight"), std::string::npos) << status.message();
}

TEST_F(SmallModel, ATiedOutputIsTheEmbedding) {
  Add("model.embed_tokens.weight", {1, 2}, {1, 2});
  EXPECT_NE(Open("plain", ", \"tie_word_embeddings\": false").status().message().find("lm_head.weight"),
            std::string::npos);
  Add("lm_head.weight", {1, 2}, {1, 2});
  EXPECT_EQ((*Open("plain", ", \"tie_word_embeddings\": true"))->Find("output.weight"), nullptr);
  EXPECT_NE((*Open("plain", ", \"tie_word_embeddings\": false"))->Find("output.weight"), nullptr);
}

TEST_F(SmallModel, OtherTypesAndEmptyTensorsAreRefusedByName) {
  const std::vector<std::byte> bytes(4);
  tensors_ = {{"model.norm.weight", "F8_E4M3", {4}, bytes}};
  Status status = Open("plain").status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("F8_E4M3"), std::string::npos) << status.message();
  tensors_ = {{"model.norm.weight", "F32", {0, 4}, {}}};
  status = Open("plain").status();
  EXPECT_EQ(status.code(), ErrorCode::kCorruptFile);
  EXPECT_NE(status.message().find("model.norm.weight"), std::string::npos) << status.message();
}

TEST_F(SmallModel, WithoutItsPartsIsNotFound) {
  EXPECT_EQ(OpenSafetensorsSource(folder_.File(""), kFamilies).status().code(), ErrorCode::kNotFound);
  Add("model.norm.weight", {1}, {0});
  ASSERT_TRUE(Open("plain").ok());
  std::filesystem::rename(folder_.File("model.safetensors"),
                          folder_.File("model-00001-of-00002.safetensors"));
  EXPECT_EQ(OpenSafetensorsSource(folder_.File(""), kFamilies).status().code(), ErrorCode::kNotFound);
  EXPECT_EQ(
      OpenSafetensorsSource(folder_.File("model-00001-of-00002.safetensors"), kFamilies).status().code(),
      ErrorCode::kInvalidArgument);
  std::filesystem::remove(folder_.File("config.json"));
  const Status status = OpenSafetensorsSource(folder_.File(""), kFamilies).status();
  EXPECT_EQ(status.code(), ErrorCode::kNotFound);
  EXPECT_NE(status.message().find("a model is a GGUF file, or a folder"), std::string::npos)
      << status.message();
  EXPECT_NE(OpenSafetensorsSource("absent.safetensors", kFamilies)
                .status()
                .message()
                .find("absent.safetensors: no such file"),
            std::string::npos);
}

// Folders of links whose files were never fetched: what is missing is the file, not the name.
TEST_F(SmallModel, ALinkToNothingIsNamed) {
  Add("model.norm.weight", {1}, {0});
  ASSERT_TRUE(Open("plain").ok());
  for (const char* name : {"model.safetensors", "config.json"}) {
    std::filesystem::rename(folder_.File(name), folder_.File("aside"));
    std::filesystem::create_symlink("nothing", folder_.File(name));
    const Status status = OpenSafetensorsSource(folder_.File(""), kFamilies).status();
    EXPECT_EQ(status.code(), ErrorCode::kIo);
    EXPECT_NE(status.message().find(std::string(name) + ": is a link to a file that is not there"),
              std::string::npos)
        << status.message();
    std::filesystem::remove(folder_.File(name));
    std::filesystem::rename(folder_.File("aside"), folder_.File(name));
  }
}

TEST(SafetensorsIndex, NamesFilesOfItsFolderOnly) {
  const auto parse = [](const std::string& text) { return ParseSafetensorsIndex(text, "i.json"); };
  const auto good =
      parse(R"({"metadata": {"total_size": 8}, "weight_map": {"b": "2.safetensors", "a": "1.safetensors",
                             "c": "1.safetensors"}})");
  ASSERT_TRUE(good.ok()) << good.status().message();
  EXPECT_EQ(good->files, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  EXPECT_EQ(good->file_of.at("c"), "1.safetensors");
  for (const char* file : {"../a.safetensors", "/etc/a.safetensors", "a/b.safetensors", ".safetensors",
                           "a.bin", "", "a\\\\b.safetensors", "a\\u0000.safetensors"}) {
    const Status status = parse(std::string(R"({"weight_map": {"a": ")") + file + "\"}}").status();
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile) << file;
    ExpectOneLine(status, "i.json");
  }
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map": {}})", R"({"weight_map": 3})", R"({"weight_map": {"a": 3}})"}) {
    ExpectOneLine(parse(text).status(), "i.json");
    EXPECT_FALSE(parse(text).ok()) << text;
  }
}

}  // namespace
}  // namespace blockgtq
