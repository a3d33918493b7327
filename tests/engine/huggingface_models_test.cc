// Models of Hugging Face transformers (safetensors and config.json) against what transformers computes, and
// against the same model in GGUF.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/engine/bundled_text.h"
#include "src/engine/calibration.h"
#include "src/engine/plan_source.h"
#include "src/formats/safetensors.h"
#include "src/text/byte_alphabet.h"
#include "tests/engine/test_models.h"
#include "tests/formats/files.h"

namespace blockgtq::test {
namespace {

std::string HuggingFacePath(const std::string& name) {
  return std::string(BGTQ_TEST_DATA) + "/models/hf/" + name;
}

/// Opens a model for work on token ids, in float32.
std::unique_ptr<LoadedModel> OpenForIds(const std::string& path) {
  auto model = LoadedModel::Open(path, {.device = "cpu", .threads = 2}, TokenizerUse::kIfThere);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return nullptr;
  (*model)->backend().SetPrecision(Precision::kFloat);
  return std::move(model).value();
}

struct Reference {
  explicit Reference(const std::string& name) {
    auto opened = SafetensorsFile::Open(HuggingFacePath(name) + "/reference.safetensors");
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    file = std::move(opened).value();
  }
  std::vector<float> Floats(const std::string& tensor) const {
    const SafetensorsEntry& entry = file->tensors().at(tensor);
    EXPECT_EQ(entry.dtype, "F32");
    std::vector<float> values(entry.data.size() / sizeof(float));
    std::memcpy(values.data(), entry.data.data(), entry.data.size());
    return values;
  }
  std::vector<Token> Ids(const std::string& tensor) const {
    const SafetensorsEntry& entry = file->tensors().at(tensor);
    EXPECT_EQ(entry.dtype, "I64");
    std::vector<int64_t> ids(entry.data.size() / sizeof(int64_t));
    std::memcpy(ids.data(), entry.data.data(), entry.data.size());
    return {ids.begin(), ids.end()};
  }
  std::unique_ptr<SafetensorsFile> file;
};

std::vector<float> RunIds(LoadedModel& model, CacheKind kind, std::span<const Token> ids, int64_t batch) {
  CacheOptions options;
  options.kind = kind;
  options.max_tokens = static_cast<int64_t>(ids.size());
  return RunAll(*MakeContext(model, options), ids, {}, batch);
}

/// Keys and values that enter attention, before RoPE, in block order, by layer.
struct Recorder : AttentionObserver {
  void Observe(int layer, int64_t rows, const float*, const float* k, const float* v) override {
    const auto count = static_cast<size_t>(rows * width);
    keys[layer].insert(keys[layer].end(), k, k + count);
    values[layer].insert(values[layer].end(), v, v + count);
  }
  int64_t width = 0;  // kv_heads * head_dim
  std::map<int, std::vector<float>> keys, values;
};

float Largest(std::span<const float> x) {
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::abs(v));
  return largest;
}

class HuggingFaceModel : public testing::TestWithParam<std::string> {
 protected:
  HuggingFaceModel() : model_(OpenForIds(HuggingFacePath(GetParam()))), reference_(GetParam()) {}
  void SetUp() override { ASSERT_NE(model_, nullptr); }
  /// MLA: transformers' keys are [nope | rope], the rope part equal in all heads; ours [rope | latent].
  void ExpectLatents(const Recorder& recorder, size_t tokens) {
    const ModelConfig& config = model_->config();
    const auto dim = static_cast<size_t>(config.head_dim),
               rope_dims = static_cast<size_t>(config.latent.rope_dims);
    const size_t nope = static_cast<size_t>(config.latent.nope_dims), rank = dim - rope_dims;
    const RopeTable rope(config.rope);
    for (int l = 0; l < config.layers; ++l) {
      const std::vector<float> latent = reference_.Floats("latent." + std::to_string(l));  // [tokens, rank]
      const std::vector<float> k =
          reference_.Floats("k." + std::to_string(l));  // [heads, tokens, nope + rope]
      float latent_worst = 0, rope_worst = 0;
      std::vector<float> rotated(dim);
      for (size_t t = 0; t < tokens; ++t) {
        rope.Rotate(&recorder.keys.at(l)[t * dim], static_cast<int64_t>(t), rotated.data());
        const std::span<const float> ours(rotated), theirs(k), latents(latent);
        rope_worst = std::max(
            rope_worst,
            MaxDifference(ours.first(rope_dims), theirs.subspan(t * (nope + rope_dims) + nope, rope_dims)));
        latent_worst =
            std::max(latent_worst, MaxDifference(ours.last(rank), latents.subspan(t * rank, rank)));
      }
      EXPECT_LT(rope_worst, 1e-5f * Largest(k)) << "layer " << l;
      EXPECT_LT(latent_worst, 1e-5f * Largest(latent)) << "layer " << l;
    }
  }

  std::unique_ptr<LoadedModel> model_;
  Reference reference_;
};

TEST_P(HuggingFaceModel, LogitsEqualTransformersWithAFloatCache) {
  for (const std::string suffix : {"", "_short"}) {
    const std::vector<Token> ids = reference_.Ids("input_ids" + suffix);
    const std::vector<float> logits = reference_.Floats("logits" + suffix);
    for (int64_t batch : {1, 5, 512}) {
      EXPECT_LT(MaxDifference(RunIds(*model_, CacheKind::kFloat, ids, batch), logits), 2e-4f)
          << "batch " << batch << suffix;
    }
  }
}

TEST_P(HuggingFaceModel, LogitsAreCloseToTransformersWithAHalfCache) {
  const std::vector<Token> ids = reference_.Ids("input_ids");
  EXPECT_LT(MaxDifference(RunIds(*model_, CacheKind::kHalf, ids, 1), reference_.Floats("logits")), 5e-2f);
}

TEST_P(HuggingFaceModel, KeysAndValuesEqualTransformers) {
  const ModelConfig& config = model_->config();
  const std::vector<Token> ids = reference_.Ids("input_ids");
  CacheOptions options;
  options.kind = CacheKind::kFloat;
  options.max_tokens = static_cast<int64_t>(ids.size());
  const auto context = MakeContext(*model_, options);
  Recorder recorder;
  recorder.width = int64_t{config.kv_heads} * config.head_dim;
  const SequenceTokens item{*context->cache().AddSequence(), ids};
  ASSERT_TRUE(context->Run({&item, 1}, {.observer = &recorder}).ok());
  const auto dim = static_cast<size_t>(config.head_dim);
  if (config.latent.rank > 0) {
    ExpectLatents(recorder, ids.size());
    return;
  }
  for (int l = 0; l < config.layers; ++l) {
    const std::vector<float> k = reference_.Floats("k." + std::to_string(l));  // [kv_heads, tokens, dim]
    const std::vector<float> v = reference_.Floats("v." + std::to_string(l));
    const RopeTable rope(config.ropes()[l]);
    float k_worst = 0, v_worst = 0;
    std::vector<float> rotated(dim), wanted(dim);
    for (size_t h = 0; h < static_cast<size_t>(config.kv_heads); ++h) {
      for (size_t t = 0; t < ids.size(); ++t) {
        const size_t ours = t * static_cast<size_t>(recorder.width) + h * dim;
        const size_t theirs = (h * ids.size() + t) * dim;
        rope.Rotate(&recorder.keys[l][ours], static_cast<int64_t>(t), rotated.data());
        rope.ToBlockOrder(&k[theirs], wanted.data());
        k_worst = std::max(k_worst, MaxDifference(rotated, wanted));
        v_worst = std::max(v_worst, MaxDifference(std::span(recorder.values[l]).subspan(ours, dim),
                                                  std::span(v).subspan(theirs, dim)));
      }
    }
    EXPECT_LT(k_worst, 1e-5f * Largest(k)) << "layer " << l;
    EXPECT_LT(v_worst, 1e-5f * Largest(v)) << "layer " << l;
  }
}

TEST_P(HuggingFaceModel, APackedCacheOfThreeBitsComesCloseAndEqualsItsDecoding) {
  const std::vector<Token> ids = reference_.Ids("input_ids");
  auto measured = Measure(*model_, ids, {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  const auto plan = MakePlan(*model_, *measured, "aligned", {3, 3, 1});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  CacheOptions options;
  options.sinks = options.recent = 0;
  options.max_tokens = 64;
  const auto context = MakeContext(*model_, options, &*plan);
  const std::vector<float> strict = RunAll(*context, ids, {.strict = true}, 48);
  EXPECT_LT(MaxDifference(strict, RunAll(*context, ids, {}, 1)), 2e-3f);
  for (const float logit : strict) ASSERT_TRUE(std::isfinite(logit));
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFaceModel,
                         testing::Values("llama", "llama3-rope", "qwen2", "mistral-nemo", "mistral-swa",
                                         "qwen3", "qwen3-v5config", "qwen3_moe", "glm", "glm4", "gemma3",
                                         "olmo2", "phi3", "deepseek_v2"),
                         [](const auto& info) { return TestName(info.param); });

/// The same weights in GGUF and in safetensors.
class ModelInTwoFormats : public testing::TestWithParam<std::string> {};

TEST_P(ModelInTwoFormats, HasOneFingerprint) {
  const auto gguf = OpenForIds(TinyModelPath(GetParam()));
  const auto safetensors = OpenForIds(HuggingFacePath(GetParam()));
  const Status equal = gguf->fingerprint().ExpectEqual(safetensors->fingerprint());
  EXPECT_TRUE(equal.ok()) << equal.message();
}

TEST_P(ModelInTwoFormats, ComputesTransformersLogitsFromGguf) {
  const auto gguf = OpenForIds(TinyModelPath(GetParam()));
  const Reference reference(GetParam());
  const std::vector<Token> ids = reference.Ids("input_ids");
  for (int64_t batch : {1, 512}) {
    EXPECT_LT(MaxDifference(RunIds(*gguf, CacheKind::kFloat, ids, batch), reference.Floats("logits")), 2e-4f)
        << "batch " << batch;
  }
}

TEST_P(ModelInTwoFormats, RunsTheOtherFormatsPlanAlike) {
  const auto gguf = OpenForIds(TinyModelPath(GetParam()));
  const auto safetensors = OpenForIds(HuggingFacePath(GetParam()));
  const std::vector<Token> ids = Reference(GetParam()).Ids("input_ids");
  auto measured = Measure(*gguf, ids, {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  const auto plan = MakePlan(*gguf, *measured, "aligned", {3, 3, 1});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  CacheOptions options;
  options.sinks = options.recent = 0;
  options.max_tokens = 64;
  // Rounding of the weights' order may move a code; a plan in the wrong channel order moves logits by whole
  // units.
  EXPECT_LT(MaxDifference(RunAll(*MakeContext(*gguf, options, &*plan), ids, {.strict = true}, 48),
                          RunAll(*MakeContext(*safetensors, options, &*plan), ids, {.strict = true}, 48)),
            0.1f);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelInTwoFormats,
                         testing::Values("llama", "llama3-rope", "qwen2", "qwen3_moe", "glm4", "gemma3",
                                         "deepseek_v2"),
                         [](const auto& info) { return TestName(info.param); });

/// A copy of a model in a folder of the test's own, to be changed.
class ChangedModel : public testing::Test {
 protected:
  ChangedModel() {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy(HuggingFacePath("llama") + "/" + file, folder_.File(file));
    }
    std::ifstream stream(folder_.File("config.json"));
    config_ = nlohmann::json::parse(stream);
  }

  Status Open() {
    std::ofstream(folder_.File("config.json")) << config_.dump();
    return LoadedModel::Open(folder_.File(""), {.device = "cpu", .threads = 1}, TokenizerUse::kIfThere)
        .status();
  }
  void ExpectRefused(ErrorCode code, const std::string& naming) {
    const Status status = Open();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(naming), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }

  TemporaryFolder folder_;
  nlohmann::json config_;
};

TEST_F(ChangedModel, OpensUnchangedAsAFolderAndAsAFile) {
  EXPECT_TRUE(Open().ok()) << Open().message();
  const auto folder = OpenForIds(folder_.File("")), file = OpenForIds(folder_.File("model.safetensors"));
  EXPECT_FALSE(folder->has_tokenizer());
  const Status equal = folder->fingerprint().ExpectEqual(file->fingerprint());
  EXPECT_TRUE(equal.ok()) << equal.message();
}

// Keys of a layer come from what the layers before it see.
TEST(HuggingFaceModel, OfAnotherWindowIsAnotherModel) {
  const TemporaryFolder folder;
  const std::string path = HuggingFacePath("mistral-swa");
  std::filesystem::copy(path + "/model.safetensors", folder.File("model.safetensors"));
  std::ifstream stream(path + "/config.json");
  nlohmann::json config = nlohmann::json::parse(stream);
  const auto original = OpenForIds(path);
  const int64_t window = original->config().window;
  ASSERT_GT(window, 1);
  for (const int64_t changed : {window, window - 1, int64_t{0}}) {
    config["sliding_window"] = changed > 0 ? nlohmann::json(changed) : nlohmann::json();
    std::ofstream(folder.File("config.json")) << config.dump();
    const auto model = OpenForIds(folder.File(""));
    EXPECT_EQ(model->fingerprint().ExpectEqual(original->fingerprint()).ok(), changed == window) << changed;
  }
}

// The frequencies of these scalings change with the sequence's length, which cached keys cannot follow.
TEST_F(ChangedModel, RunsUpToTheLengthWhereItsRopeChangesAndRefusesMoreByName) {
  std::vector<double> factors(8);
  for (size_t j = 0; j < factors.size(); ++j) factors[j] = 1.0 + static_cast<double>(j);
  const std::vector<Token> ids(40, 7);
  for (const nlohmann::json& scaling :
       {nlohmann::json{{"rope_type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 32}},
        nlohmann::json{{"rope_type", "longrope"},
                       {"factor", 4.0},
                       {"original_max_position_embeddings", 32},
                       {"short_factor", factors},
                       {"long_factor", factors}}}) {
    config_["rope_scaling"] = scaling;
    ASSERT_TRUE(Open().ok()) << Open().message();
    const auto model = OpenForIds(folder_.File(""));
    CacheOptions options;
    options.kind = CacheKind::kFloat;
    options.max_tokens = 64;
    const auto context = MakeContext(*model, options);
    const SequenceId sequence = *context->cache().AddSequence();
    const SequenceTokens fits{sequence, std::span<const Token>(ids).first(32)},
        one{sequence, {ids.data(), 1}};
    ASSERT_TRUE(context->Run({&fits, 1}).ok());
    const Status status = context->Run({&one, 1});
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_NE(status.message().find("33 tokens"), std::string::npos) << status.message();
    EXPECT_EQ(context->cache().state(sequence).length, 32);
  }
}

/// A tokenizer.json whose tokens are the bytes.
nlohmann::json TokenizerOfBytes() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[ByteToAlphabet(static_cast<uint8_t>(byte))] = byte;
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

// The default is 2,048 tokens, and this model's context 512.
TEST_F(ChangedModel, IsCalibratedOnAsManyTokensAsItsRopeLasts) {
  std::ofstream(folder_.File("tokenizer.json")) << TokenizerOfBytes();
  config_["rope_scaling"] = {
      {"rope_type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 80}};
  ASSERT_TRUE(Open().ok()) << Open().message();
  const auto model = OpenForIds(folder_.File(""));
  const Result<Plan> plan = Calibrate(*model, BundledCalibrationText(), {});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
}

/// Opens the RoPE for 48 tokens where the model was trained on 32, and runs them.
TEST(RopeContext, OfALongerSequenceGivesTheLogitsThatItsDefinitionGives) {
  const auto opened =
      SafetensorsFile::Open(std::string(BGTQ_TEST_DATA) + "/models/rope_references.safetensors");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  nlohmann::json short_factor, long_factor;
  for (int j = 0; j < 8; ++j) {
    short_factor.push_back(1.0 + 0.05 * j);
    long_factor.push_back(1.0 + 0.5 * j);
  }
  const nlohmann::json longrope = {{"type", "longrope"},
                                   {"factor", 4.0},
                                   {"original_max_position_embeddings", 32},
                                   {"short_factor", short_factor},
                                   {"long_factor", long_factor}};
  for (const auto& [name, scaling] :
       {std::pair<std::string, nlohmann::json>{"llama", {{"type", "dynamic"}, {"factor", 4.0}}},
        {"phi3", longrope}}) {
    const TemporaryFolder folder;
    std::filesystem::copy(HuggingFacePath(name) + "/model.safetensors", folder.File("model.safetensors"));
    std::ifstream stream(HuggingFacePath(name) + "/config.json");
    nlohmann::json config = nlohmann::json::parse(stream);
    config["rope_scaling"] = scaling;
    config.erase("original_max_position_embeddings");
    config["max_position_embeddings"] = name == "llama" ? 32 : 128;
    std::ofstream(folder.File("config.json")) << config.dump();
    const std::vector<Token> ids = Reference(name).Ids("input_ids");
    for (const auto& [length, rope_context] : {std::pair<size_t, int64_t>{48, 48}, {32, 0}}) {
      auto model = LoadedModel::Open(folder.File(""), {.device = "cpu", .threads = 2}, TokenizerUse::kIfThere,
                                     rope_context);
      ASSERT_TRUE(model.ok()) << model.status().message();
      (*model)->backend().SetPrecision(Precision::kFloat);
      const SafetensorsEntry& entry = (*opened)->tensors().at(scaling["type"].get<std::string>() +
                                                              (rope_context > 0 ? ".long" : ".short"));
      std::vector<float> wanted(entry.data.size() / sizeof(float));
      std::memcpy(wanted.data(), entry.data.data(), entry.data.size());
      const std::vector<float> logits = RunIds(**model, CacheKind::kFloat, std::span(ids).first(length), 7);
      EXPECT_LT(MaxDifference(std::span(logits).last(wanted.size()), wanted), 2e-4f) << name << " " << length;
    }
    const auto status =
        LoadedModel::Open(folder.File(""), {.device = "cpu", .threads = 1}, TokenizerUse::kIfThere, 129)
            .status();
    if (name == "llama") {
      EXPECT_TRUE(status.ok()) << status.message();
    } else {
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(status.message().find("context is 128"), std::string::npos) << status.message();
    }
  }
  const auto plain = LoadedModel::Open(HuggingFacePath("qwen3"), {.device = "cpu", .threads = 1},
                                       TokenizerUse::kIfThere, 48);
  EXPECT_EQ(plain.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(plain.status().message().find("does not change"), std::string::npos) << plain.status().message();
}

TEST_F(ChangedModel, ATokenizerIsMissedByNameWhereItIsNeeded) {
  const Status status = LoadedModel::Open(folder_.File(""), {.device = "cpu", .threads = 1}).status();
  EXPECT_NE(status.message().find("tokenizer"), std::string::npos) << status.message();
}

TEST_F(ChangedModel, SettingsThatThisBuildDoesNotHaveAreRefusedByName) {
  const nlohmann::json original = config_;
  const std::vector<std::tuple<const char*, nlohmann::json, const char*>> changes = {
      {"rope_scaling", {{"rope_type", "spiral"}, {"factor", 2.0}}, "spiral"},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"twist", 3}}, "rope_scaling.twist"},
      {"hidden_act", "relu2", "relu2"},
      {"hidden_act", "gelu", "gelu"},
      {"model_type", "banana", "banana"},
      {"architectures", {"LlamaForSequenceClassification"}, "LlamaForSequenceClassification"},
      {"quantization_config", {{"quant_method", "fp8"}}, "quantization_config"},
      {"num_experts", 8, "num_experts"},
      {"some_new_trick", true, "some_new_trick"},
      {"head_dim", 24, "24"},
  };
  for (const auto& [key, value, naming] : changes) {
    config_ = original;
    config_[key] = value;
    ExpectRefused(ErrorCode::kUnsupported, naming);
  }
}

TEST_F(ChangedModel, ContradictionsBetweenConfigurationAndWeightsAreRefusedByName) {
  const nlohmann::json original = config_;
  const std::vector<std::tuple<const char*, nlohmann::json, const char*>> changes = {
      {"num_attention_heads", 5, "num_key_value_heads"},
      {"hidden_size", 128, "model.embed_tokens.weight"},
      {"num_hidden_layers", 3, "tensor model.layers.2.self_attn.q_proj.weight is missing"},
      {"intermediate_size", 96, "mlp.gate_proj.weight"},
      {"num_hidden_layers", -1, "num_hidden_layers"},
      {"rms_norm_eps", "small", "rms_norm_eps"},
      {"rms_norm_eps", 1e-300, "rms_norm_eps"},  // 0 as a float
      {"vocab_size", 300, "256 rows"},
      {"vocab_size", "many", "vocab_size"},
      {"rope_scaling", {{"rope_type", "yarn"}}, "'rope_scaling.factor' is missing"},
      {"rope_theta", 0, "rope_theta"},
  };
  for (const auto& [key, value, naming] : changes) {
    config_ = original;
    config_[key] = value;
    ExpectRefused(ErrorCode::kCorruptFile, naming);
  }
  config_ = original;
  config_["num_hidden_layers"] = 1;
  ExpectRefused(ErrorCode::kUnsupported, "model.layers.1.");
  config_ = original;
  config_.erase("hidden_size");
  ExpectRefused(ErrorCode::kCorruptFile, "hidden_size");
}

TEST_F(ChangedModel, InShardsComputesTheSameBits) {
  const auto whole = SafetensorsFile::Open(folder_.File("model.safetensors"));
  ASSERT_TRUE(whole.ok());
  nlohmann::json index;
  std::vector<SafetensorsTensor> shards[2];
  for (const auto& [name, entry] : (*whole)->tensors()) {
    const size_t shard = std::hash<std::string>()(name) % 2;
    shards[shard].push_back({name, entry.dtype, entry.shape, entry.data});
    index["weight_map"][name] = "part-" + std::to_string(shard) + ".safetensors";
  }
  const TemporaryFolder sharded;
  for (size_t i : {0, 1}) {
    ASSERT_TRUE(
        WriteSafetensors(sharded.File("part-" + std::to_string(i) + ".safetensors"), {}, shards[i]).ok());
  }
  std::filesystem::copy(folder_.File("config.json"), sharded.File("config.json"));
  const auto write_index = [&] {
    std::ofstream(sharded.File("model.safetensors.index.json")) << index.dump();
  };
  write_index();
  const std::vector<Token> ids = {1, 7, 200, 3};
  const auto a = OpenForIds(folder_.File("")), b = OpenForIds(sharded.File(""));
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->source().format(), "safetensors, 2 files");
  EXPECT_EQ(RunIds(*a, CacheKind::kFloat, ids, 4), RunIds(*b, CacheKind::kFloat, ids, 4));

  const auto refused = [&](const std::string& naming) {
    write_index();
    const Status status =
        LoadedModel::Open(sharded.File(""), {.device = "cpu", .threads = 1}, TokenizerUse::kIfThere).status();
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile);
    EXPECT_NE(status.message().find(naming), std::string::npos) << status.message();
  };
  const nlohmann::json original = index;
  index["weight_map"]["extra.weight"] = "part-0.safetensors";
  refused("extra.weight");
  index = original;
  index["weight_map"].erase("model.norm.weight");
  refused("model.norm.weight");
  index = original;
  index["weight_map"]["model.norm.weight"] = "../part-0.safetensors";
  refused("model.norm.weight");
}

TEST(PlanPath, OfAFolderIsBesideItWhateverItsPathEndsIn) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.File("model"));
  const std::string plain = folder.File("model");
  EXPECT_EQ(PlanPathFor(plain, {}), plain + ".K3V3.bgtq.safetensors");
  const std::string full = std::filesystem::canonical(plain).string();
  EXPECT_EQ(PlanPathFor(plain + "/", {}), full + ".K3V3.bgtq.safetensors");
  EXPECT_EQ(PlanPathFor(plain + "/.", {}), full + ".K3V3.bgtq.safetensors");
}

}  // namespace
}  // namespace blockgtq::test
