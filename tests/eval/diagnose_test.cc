// The panel of `diagnose`: its metrics against numpy (tests/data/eval/make_diagnose.py), its wiring against a
// plain loop over a tiny model, and the claims that the report rests on.
#include "src/eval/diagnose.h"

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "src/core/statistics.h"
#include "src/engine/bundled_text.h"
#include "src/engine/calibration.h"
#include "src/eval/diagnose_metrics.h"
#include "src/eval/diagnose_report.h"
#include "tests/engine/test_models.h"

namespace blockgtq::test {
namespace {

/// A query head and its decoded keys, rotated to positions 0, 1, ...
struct Sample {
  RopeTable rope{RopeConfig{}};
  std::vector<float> queries, keys, decoded;
  float scale = 1;
  int64_t tokens() const { return static_cast<int64_t>(keys.size()) / rope.config().head_dim; }
  KeyErrorSums Errors() const {
    return QueryHead(queries, keys, rope.config().head_dim, scale).Errors(decoded, OffsetRotations(rope));
  }
};

nlohmann::json NumpyCase() {
  std::ifstream stream(std::string(BGTQ_TEST_DATA) + "/eval/diagnose.json");
  return nlohmann::json::parse(stream);
}

Sample NumpySample(const nlohmann::json& json) {
  RopeConfig config;
  config.head_dim = json["head_dim"];
  config.rotary_dims = json["rotary_dims"];
  config.freq_base = json["freq_base"];
  config.attention_factor = json["attention_factor"];
  Sample sample{RopeTable(config), {}, {}, {}, json["scale"].get<float>()};
  const auto rotated = [&](const char* name) {
    std::vector<float> all;
    for (size_t t = 0; t < json[name].size(); ++t) {
      const std::vector<float> x = json[name][t];
      std::vector<float> out(x.size());
      sample.rope.Rotate(x.data(), static_cast<int64_t>(t), out.data());
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  };
  sample.queries = rotated("queries");
  sample.keys = rotated("keys");
  sample.decoded = rotated("decoded");
  return sample;
}

class KeyErrorMetrics : public testing::Test {
 protected:
  nlohmann::json json_ = NumpyCase();
  Sample sample_ = NumpySample(json_);
  double Mae(const KeyErrorSums& e) const { return e.logit_error / static_cast<double>(e.logits); }
  double Kl(const KeyErrorSums& e) const { return e.kl / static_cast<double>(e.queries); }
  double Overlap(const KeyErrorSums& e) const { return e.overlap / static_cast<double>(e.queries); }
};

TEST_F(KeyErrorMetrics, EqualNumpysWithPartialRopeAndAnAttentionFactor) {
  const KeyErrorSums errors = sample_.Errors();
  EXPECT_EQ(errors.logits, sample_.tokens() * 50);
  EXPECT_EQ(errors.queries, sample_.tokens() - 10);
  EXPECT_NEAR(Mae(errors) / json_["mae"].get<double>(), 1, 1e-5);
  EXPECT_NEAR(Kl(errors) / json_["kl"].get<double>(), 1, 1e-5);
  EXPECT_NEAR(Overlap(errors), json_["overlap"].get<double>(), 1e-12);
}

TEST_F(KeyErrorMetrics, OfExactKeysAreZeroAndFullOverlap) {
  sample_.decoded = sample_.keys;
  const KeyErrorSums errors = sample_.Errors();
  EXPECT_EQ(errors.logit_error, 0);
  EXPECT_LT(Kl(errors), 1e-9);
  EXPECT_DOUBLE_EQ(Overlap(errors), 1);
}

TEST_F(KeyErrorMetrics, MoveWithTheSizeOfTheError) {
  const KeyErrorSums before = sample_.Errors();
  for (size_t i = 0; i < sample_.keys.size(); ++i) sample_.decoded[i] += sample_.decoded[i] - sample_.keys[i];
  const KeyErrorSums after = sample_.Errors();
  EXPECT_NEAR(Mae(after) / Mae(before), 2, 1e-5);
  EXPECT_GT(Kl(after), 1.5 * Kl(before));
  EXPECT_LT(Overlap(after), Overlap(before));
}

TEST_F(KeyErrorMetrics, MoveWithTheQueryThatMeetsTheError) {
  const KeyErrorSums before = sample_.Errors();
  for (float& q : sample_.queries) q *= 1.5f;
  const KeyErrorSums after = sample_.Errors();
  EXPECT_NEAR(Mae(after) / Mae(before), 1.5, 1e-5);
  EXPECT_GT(Kl(after), 1.2 * Kl(before));
  sample_.queries[static_cast<size_t>(11 * 8 + 1)] += 1;  // one channel of one query
  EXPECT_NE(sample_.Errors().logit_error, after.logit_error);
  EXPECT_NE(sample_.Errors().kl, after.kl);
}

TEST_F(KeyErrorMetrics, SeeOnlyTheTokensUpToTheQuery) {
  KeyErrorSums all;
  for (int64_t shown : {sample_.tokens(), sample_.tokens() - 1}) {
    Sample part = sample_;
    for (std::vector<float>* x : {&part.queries, &part.keys, &part.decoded})
      x->resize(static_cast<size_t>(shown * 8));
    const KeyErrorSums errors = part.Errors();
    if (shown == sample_.tokens()) {
      all = errors;
      continue;
    }
    // Queries before the last do not notice that the last token is gone.
    Sample changed = sample_;
    for (size_t d = 0; d < 8; ++d) changed.decoded[changed.decoded.size() - 1 - d] = 30;
    const KeyErrorSums other = changed.Errors();
    EXPECT_GT(all.kl, errors.kl);
    EXPECT_GT(other.kl - errors.kl, 2 * (all.kl - errors.kl));
    EXPECT_EQ(errors.queries, all.queries - 1);
  }
}

TEST(TopKeys, OverlapCountsThoseThatStay) {
  // One dim decides (no rotation): key t has logit t, so the last query attends 20..29 most; three of them
  // are decoded to nothing.
  RopeConfig config;
  config.head_dim = 2;
  config.rotary_dims = 0;
  Sample sample{RopeTable(config), std::vector<float>(60, 0), std::vector<float>(60, 0), {}, 1};
  for (size_t t = 0; t < 30; ++t) {
    sample.queries[2 * t] = t == 29 ? 1.0f : 0.0f;
    sample.keys[2 * t] = static_cast<float>(t);
  }
  sample.decoded = sample.keys;
  for (size_t t : {21u, 25u, 29u}) sample.decoded[2 * t] = -5;
  const KeyErrorSums errors = sample.Errors();
  EXPECT_EQ(errors.queries, 20);
  // All-equal logits of the other queries keep the first ten on both sides.
  EXPECT_NEAR(errors.overlap, 19 + 0.7, 1e-9);
  // Without rotation every offset sees the same error: 26, 30 and 34 from the three keys, but only the last
  // query has a component to meet its own key.
  EXPECT_NEAR(errors.logit_error, 50 * 34.0, 1e-2);
}

/// Calibration of one head whose blocks differ by powers of two, from 400 random tokens; [queries, keys].
struct UnequalHead {
  int dim;
  std::vector<float> queries, keys;
  HeadCalibration calibration;
  UnequalHead(int dim_in, double ratio, unsigned seed) : dim(dim_in) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    StatisticsAccumulator statistics(dim);
    for (int t = 0; t < 400; ++t) {
      for (std::vector<float>* x : {&queries, &keys})
        for (int d = 0; d < dim; ++d)
          x->push_back(normal(random) * static_cast<float>(std::pow(
                                            ratio, -d / 2)));  // NOLINT(bugprone-integer-division): a block
      statistics.AddQuery(&queries[static_cast<size_t>(t * dim)]);
      statistics.AddKey(&keys[static_cast<size_t>(t * dim)]);
    }
    calibration.statistics = statistics.Finish();
    calibration.keys = calibration.values = keys;
  }
};

KeyErrorSums ErrorsOfRecipe(const UnequalHead& head, const std::string& recipe, double k_bits) {
  RopeConfig config;
  config.head_dim = config.rotary_dims = head.dim;
  auto rope = std::make_shared<RopeTable>(config);
  RecipeOptions options;
  options.k_bits = k_bits;
  const auto plan = (*FindRecipe(recipe))->plan_head(head.calibration, options, 0, 0);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  const int64_t tokens = 192;
  std::vector<float> queries(static_cast<size_t>(tokens * head.dim)), keys(queries.size());
  for (int64_t t = 0; t < tokens; ++t) {
    rope->Rotate(&head.queries[static_cast<size_t>(t * head.dim)], t,
                 &queries[static_cast<size_t>(t * head.dim)]);
    rope->Rotate(&head.keys[static_cast<size_t>(t * head.dim)], t, &keys[static_cast<size_t>(t * head.dim)]);
  }
  std::vector<float> decoded = keys;
  SimulatePlannedHead(*plan, rope)->RoundTripKeys({}, decoded, 0);
  return QueryHead(queries, keys, head.dim, 1.0f / std::sqrt(static_cast<float>(head.dim)))
      .Errors(decoded, OffsetRotations(*rope));
}

TEST(Recipes, PaperHasLessLogitErrorThanUniformWhereBlocksAreUnequal) {
  for (double bits : {2.0, 3.0}) {
    const UnequalHead unequal(64, 1.2, 3);
    EXPECT_LT(ErrorsOfRecipe(unequal, "paper", bits).logit_error,
              0.8 * ErrorsOfRecipe(unequal, "uniform", bits).logit_error)
        << bits << " bits";
    const UnequalHead equal(64, 1.0, 3);  // nothing to gain
    EXPECT_GT(ErrorsOfRecipe(equal, "paper", bits).logit_error,
              0.9 * ErrorsOfRecipe(equal, "uniform", bits).logit_error)
        << bits << " bits";
  }
}

class DiagnoseOfATinyModel : public testing::Test {
 protected:
  void SetUp() override {
    model_ = OpenModel(TinyModelPath("llama"));
    options_.tokens = 512;
    options_.threads = 2;
  }
  DiagnoseResult Run() {
    const auto result = Diagnose(*model_, BundledCalibrationText(), BundledScoringText(), options_);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : DiagnoseResult{};
  }
  /// The first 256 tokens of a text, as the panel takes them.
  std::vector<Token> FirstIds(std::string_view text) const {
    std::vector<Token> ids = model_->tokenizer().Encode(text.substr(0, 4096), false);
    const std::vector<Token> start = model_->PromptStart(nullptr);
    ids.insert(ids.begin(), start.begin(), start.end());
    ids.resize(256);
    return ids;
  }
  static const DiagnosedStorage& Find(const DiagnoseResult& r, const std::string& name) {
    for (const DiagnosedStorage& d : r.storages)
      if (d.name == name) return d;
    ADD_FAILURE() << name;
    return r.storages[0];
  }
  std::unique_ptr<LoadedModel> model_;
  DiagnoseOptions options_;
};

/// Keeps every layer's queries and keys of one pass.
struct Recorder : AttentionObserver {
  std::vector<std::vector<float>> queries, keys;
  int heads = 0, kv_heads = 0, dim = 0;
  void Observe(int, int64_t rows, const float* q, const float* k, const float*) override {
    queries.emplace_back(q, q + rows * heads * dim);
    keys.emplace_back(k, k + rows * kv_heads * dim);
  }
};

TEST_F(DiagnoseOfATinyModel, EqualsAPlainLoopOverChunksHeadsAndTokens) {
  options_.recipes = {"aligned"};
  options_.k_bits = {3};
  const DiagnoseResult result = Run();
  ASSERT_EQ(result.storages.size(), 1u);
  EXPECT_EQ(result.scored_tokens, 512);

  const ModelConfig& c = model_->config();
  ASSERT_FALSE(model_->tokenizer().add_bos());
  const std::vector<Token> calibration =
      model_->tokenizer().Encode(BundledCalibrationText().substr(0, 9000), false);
  const std::vector<Token> scored = model_->tokenizer().Encode(BundledScoringText().substr(0, 9000), false);
  const auto measured = Measure(*model_, std::span(calibration).first(512), {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  const auto plan = MakePlan(*model_, *measured, "aligned", {});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  auto rope = std::make_shared<RopeTable>(c.rope);
  std::vector<double> error(static_cast<size_t>(c.layers), 0), square(error);
  for (size_t chunk = 0; chunk < 2; ++chunk) {
    CacheOptions cache;
    cache.kind = CacheKind::kFloat;
    cache.max_tokens = 256;
    const auto context = MakeContext(*model_, cache);
    Recorder recorder;
    recorder.heads = c.heads;
    recorder.kv_heads = c.kv_heads;
    recorder.dim = c.head_dim;
    ASSERT_TRUE(context
                    ->Append(
                        *context->cache().AddSequence(), std::span(scored).subspan(chunk * 256, 256),
                        {.observer = &recorder}, [](int64_t, int64_t) { return Status::Ok(); }, 256)
                    .ok());
    for (int l = 0; l < c.layers; ++l) {
      for (int h = 0; h < c.heads; ++h) {
        const int kv_head = h / (c.heads / c.kv_heads);
        const auto codec = SimulatePlannedHead(plan->head(l, kv_head), rope);
        for (int64_t t = 0; t < 256; ++t) {
          std::vector<float> key(static_cast<size_t>(c.head_dim)), query(key);
          rope->Rotate(&recorder.keys[static_cast<size_t>(l)]
                                     [static_cast<size_t>((t * c.kv_heads + kv_head) * c.head_dim)],
                       t, key.data());
          std::vector<float> decoded = key;
          codec->RoundTripKeys({}, decoded, t);
          rope->Rotate(
              &recorder.queries[static_cast<size_t>(l)][static_cast<size_t>((t * c.heads + h) * c.head_dim)],
              t, query.data());
          for (int o = 0; o < 50; ++o) {  // offset o is -1024 + 2048 o / 49
            double logit = 0;
            for (int b = 0; b < c.head_dim / 2; ++b) {
              const double a = (-1024 + 2048.0 * o / 49) * rope->frequencies()[static_cast<size_t>(b)];
              const size_t x = static_cast<size_t>(2 * b), y = x + 1;
              logit += (query[x] * std::cos(a) - query[y] * std::sin(a)) * (key[x] - decoded[x]) +
                       (query[x] * std::sin(a) + query[y] * std::cos(a)) * (key[y] - decoded[y]);
            }
            error[static_cast<size_t>(l)] += std::abs(logit);
            square[static_cast<size_t>(l)] += logit * logit;
          }
        }
      }
    }
  }
  const DiagnosedStorage& storage = result.storages[0];
  ASSERT_EQ(storage.predicted_rms.size(), error.size());
  for (size_t l = 0; l < error.size(); ++l) {
    const double logits = 2.0 * 256 * c.heads * 50;
    EXPECT_NEAR(error[l] / logits / storage.layers[l].mae, 1, 1e-4) << "layer " << l;
    const double rms = std::sqrt(square[l] / logits);
    EXPECT_NEAR(rms / storage.layers[l].rms, 1, 1e-4) << "layer " << l;
    // Predicted on another text, for nearest rounding; small groups round to 0.7 of its square at best.
    EXPECT_LT(rms / storage.predicted_rms[l], 1.1) << "layer " << l;
    EXPECT_GT(rms / storage.predicted_rms[l], 0.7) << "layer " << l;
  }
}

// A cache of latents: the rope key's logits at all offsets, the latent's plain product, both from the
// absorbed queries that its attention sees.
TEST_F(DiagnoseOfATinyModel, OfLatentsTellsTheRopeKeyFromTheLatent) {
  model_ = OpenModel(TinyModelPath("deepseek_v2"));
  const ModelConfig& c = model_->config();
  ASSERT_EQ(c.latent.rank, 32);
  ASSERT_EQ(c.head_dim, 16 + 32);
  options_.tokens = 256;
  options_.recipes = {"paper"};
  options_.k_bits = {3};
  const DiagnoseResult result = Run();
  ASSERT_EQ(result.storages.size(), 1u);
  EXPECT_EQ(result.latent_dims, 32);

  const std::vector<Token> scored = FirstIds(BundledScoringText()),
                           calibration = FirstIds(BundledCalibrationText());
  const auto measured = Measure(*model_, calibration, {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  const auto plan = MakePlan(*model_, *measured, "paper", {3, 1, 2});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto context = MakeContext(*model_, {.kind = CacheKind::kFloat, .max_tokens = 256});
  Recorder recorder;
  recorder.heads = c.heads;
  recorder.kv_heads = 1;
  recorder.dim = c.head_dim;
  const SequenceTokens item{*context->cache().AddSequence(), scored};
  ASSERT_TRUE(context->Run({&item, 1}, {.observer = &recorder}).ok());
  const auto rope = std::make_shared<RopeTable>(c.rope);
  rope->Reserve(256);
  const size_t dim = static_cast<size_t>(c.head_dim);
  for (int l = 0; l < c.layers; ++l) {
    const auto codec = SimulatePlannedHead(plan->head(l, 0), rope);
    double rope_error = 0, latent_error = 0;
    for (int64_t t = 0; t < 256; ++t) {
      std::vector<float> key(dim), query(dim);
      rope->Rotate(&recorder.keys[static_cast<size_t>(l)][static_cast<size_t>(t) * dim], t, key.data());
      std::vector<float> decoded = key;
      codec->RoundTripKeys({}, decoded, t);
      for (int h = 0; h < c.heads; ++h) {
        rope->Rotate(&recorder.queries[static_cast<size_t>(l)][static_cast<size_t>(t * c.heads + h) * dim], t,
                     query.data());
        double latent = 0;
        for (size_t d = 16; d < dim; ++d) latent += double{query[d]} * (key[d] - decoded[d]);
        latent_error += std::abs(latent);
        for (int o = 0; o < 50; ++o) {
          double logit = 0;
          for (size_t b = 0; b < 8; ++b) {
            const double a = (-1024 + 2048.0 * o / 49) * rope->frequencies()[b];
            const size_t x = 2 * b, y = x + 1;
            logit += (query[x] * std::cos(a) - query[y] * std::sin(a)) * (key[x] - decoded[x]) +
                     (query[x] * std::sin(a) + query[y] * std::cos(a)) * (key[y] - decoded[y]);
          }
          rope_error += std::abs(logit);
        }
      }
    }
    const KeyErrors& errors = result.storages[0].layers[static_cast<size_t>(l)];
    EXPECT_NEAR(rope_error / (256.0 * c.heads * 50) / errors.mae, 1, 1e-4) << "layer " << l;
    EXPECT_NEAR(latent_error / (256.0 * c.heads) / errors.latent_mae, 1, 1e-4) << "layer " << l;
    EXPECT_GT(errors.latent_mae, 0) << "layer " << l;
  }
  // Each part spends its own budget: 3 bits a dim.
  for (const auto* parts : {&result.storages[0].fingerprint, &result.storages[0].latent_fingerprint}) {
    ASSERT_EQ(parts->size(), static_cast<size_t>(c.layers));
    for (const auto& layer : *parts) {
      double bits = 0;
      for (size_t w = 0; w < 8; ++w) bits += static_cast<double>(w + 1) * layer[w];
      EXPECT_NEAR(bits, 3, 1e-12);
    }
  }
  const std::string tables = DiagnoseTables(result);
  for (const char* part : {"MAE of the latent", "latent MAE paper K3", "Share of the latent's pairs of dims"})
    EXPECT_NE(tables.find(part), std::string::npos) << part;
}

TEST_F(DiagnoseOfATinyModel, MoreBitsAreBetterAndThreadsChangeNothing) {
  const DiagnoseResult two = Run();
  for (const char* recipe : {"aligned", "paper", "uniform"}) {
    const KeyErrors coarse = Find(two, std::string(recipe) + " K2").mean,
                    fine = Find(two, std::string(recipe) + " K4").mean;
    EXPECT_LT(fine.mae, 0.6 * coarse.mae) << recipe;
    EXPECT_LT(fine.kl, 0.6 * coarse.kl) << recipe;
    EXPECT_GT(fine.overlap, coarse.overlap) << recipe;
  }
  EXPECT_EQ(two.rows.size(), 3u);
  options_.threads = 1;
  const DiagnoseResult one = Run();
  for (size_t s = 0; s < one.storages.size(); ++s) {
    EXPECT_EQ(one.storages[s].mean.mae, two.storages[s].mean.mae);
    EXPECT_EQ(one.storages[s].mean.kl, two.storages[s].mean.kl);
  }
}

TEST_F(DiagnoseOfATinyModel, SinksKeepTheirExactKeys) {
  options_.recipes = {"uniform"};
  options_.k_bits = {2};
  const double none = Run().storages[0].mean.mae;
  options_.sinks = 64;  // a quarter of each chunk's keys: their errors are a quarter of all, about
  EXPECT_NEAR(Run().storages[0].mean.mae / none, 0.75, 0.05);
  options_.sinks = 256;
  const DiagnosedStorage all = Run().storages[0];
  EXPECT_EQ(all.mean.mae, 0);
  EXPECT_LT(all.mean.kl, 1e-9);
  EXPECT_EQ(all.mean.overlap, 1);
}

TEST_F(DiagnoseOfATinyModel, WinsCountLayersThatAreStrictlyBetter) {
  DiagnosedStorage a, b;
  a.layers = {{1, 0.5, 0.9}, {2, 0.5, 0.8}, {3, 0.5, 0.7}, {5, 1, 0.2}};
  b.layers = {{2, 0.4, 0.9}, {2, 0.6, 0.7}, {4, 0.7, 0.6}, {5, 1, 0.2}};
  const LayerWins wins = CountWins(a, b);
  EXPECT_EQ((std::vector<int>{wins.layers, wins.mae, wins.kl, wins.overlap}), (std::vector<int>{4, 2, 2, 2}));
}

TEST(KeyStorage, AFingerprintIsALayersShareOfBlocksAtEachWidth) {
  KeyStorage storage;
  storage.heads.layers = storage.heads.kv_heads = 2;
  storage.block_widths = {{1, 3, 3, 8}, {3, 3, 3, 3}, {2, 2, 2, 2}, {2, 2, 2, 4}};
  EXPECT_EQ(storage.Fingerprint(0), (std::array<double, 8>{0.125, 0, 0.75, 0, 0, 0, 0, 0.125}));
  EXPECT_EQ(storage.Fingerprint(1), (std::array<double, 8>{0, 0.875, 0, 0.125, 0, 0, 0, 0}));
}

TEST_F(DiagnoseOfATinyModel, AFingerprintSpendsTheBudget) {
  model_ = OpenModel(TinyModelPath("qwen2"));
  options_.k_bits = {3};
  const DiagnoseResult result = Run();
  for (const auto& layer : Find(result, "uniform K3").fingerprint) EXPECT_EQ(layer[2], 1);
  int unequal = 0;
  for (const auto& layer : Find(result, "paper K3").fingerprint) {
    double bits = 0;
    for (size_t w = 0; w < 8; ++w) bits += static_cast<double>(w + 1) * layer[w];
    EXPECT_NEAR(bits, 3, 1e-12);
    EXPECT_NEAR(std::accumulate(layer.begin(), layer.end(), 0.0), 1, 1e-12);
    unequal += layer[2] < 1 ? 1 : 0;
  }
  EXPECT_GT(unequal, 0);
}

TEST_F(DiagnoseOfATinyModel, EqualBytesGivesTheOthersTheNextLargerSize) {
  options_.recipes = {"uniform", "paper", "aligned"};
  options_.k_bits = {5};
  options_.equal_bytes = true;
  const DiagnoseResult result = Run();
  ASSERT_EQ(result.rows.size(), 1u);
  ASSERT_EQ(result.rows[0].storages.size(), 3u);
  const double target = result.storages[0].k_bytes;
  EXPECT_DOUBLE_EQ(target, 5 * 16 / 8.0 + 2);  // codes and an fp16 norm
  const std::vector<Token> tokens =
      model_->tokenizer().Encode(BundledCalibrationText().substr(0, 9000), false);
  const auto measured = Measure(*model_, std::span(tokens).first(512), {});
  ASSERT_TRUE(measured.ok());
  const StorageSource source{model_.get(), *measured, std::make_shared<RopeTable>(model_->config().rope),
                             options_.seed};
  for (size_t s : {1u, 2u}) {
    const DiagnosedStorage& d = result.storages[s];
    EXPECT_GE(d.k_bytes, target) << d.name;
    EXPECT_NE(d.k_bits, 5) << d.name;
    if (d.k_bits == 1) continue;  // its smallest budget
    const auto smaller = MakeKeyStorage(source, d.recipe, d.k_bits - 1.0 / 16);
    ASSERT_TRUE(smaller.ok()) << smaller.status().message();
    EXPECT_LT(smaller->k_bytes, target) << d.name;
  }
  const auto same = MakeKeyStorageOfBytes(source, "uniform", target);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(same->k_bits, 5);
  const auto too_much = MakeKeyStorageOfBytes(source, "uniform", 18.5);  // 8 bits of 16 dims and a norm: 18
  ASSERT_FALSE(too_much.ok());
  EXPECT_NE(too_much.status().message().find("uniform: stores 18.00 bytes a key at 8 bits"),
            std::string::npos)
      << too_much.status().message();
}

TEST_F(DiagnoseOfATinyModel, RefusesWhatItCannotHonour) {
  const auto message = [&](auto change) {
    DiagnoseOptions options = options_;
    change(options);
    const auto result = Diagnose(*model_, BundledCalibrationText(), BundledScoringText(), options);
    return result.ok() ? "" : result.status().message();
  };
  EXPECT_NE(message([](auto& o) { o.recipes = {"magic"}; }).find("magic"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.recipes = {"fp16"}; }).find("uncompressed"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.recipes = {"paper", "paper"}; }).find("twice"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.k_bits = {9}; }).find("1..8"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.k_bits = {}; }).find("-K"), std::string::npos);
  EXPECT_NE(message([](auto& o) {
              o.recipes = {"uniform"};
              o.k_bits = {2.5};
            }).find("uniform"),
            std::string::npos);
  const auto brief = Diagnose(*model_, BundledCalibrationText(), "a short text", options_);
  ASSERT_FALSE(brief.ok());
  EXPECT_NE(brief.status().message().find("scored text"), std::string::npos);
}

TEST_F(DiagnoseOfATinyModel, TheSpectrumShowsTheHeadOfLargestSpread) {
  DiagnoseResult result;
  result.kv_heads = 2;
  for (double slope : {0.1, 0.5, 0.9, 0.2}) {
    HeadStatistics s;
    for (int b = 0; b < 8; ++b) s.query_energy.push_back(std::exp(slope * b) / slope / slope / slope / slope);
    s.key_energy = s.query_energy;
    result.statistics.push_back(s);
  }
  EXPECT_EQ(HeadOfLargestSpread(result).layer, 1);
  EXPECT_EQ(HeadOfLargestSpread(result).kv_head, 0);
}

TEST_F(DiagnoseOfATinyModel, TablesAndPlotsNameEveryStorage) {
  options_.k_bits = {2};
  const DiagnoseResult result = Run();
  const std::string tables = DiagnoseTables(result);
  const auto plots = DiagnosePlots(result, {1, 1});
  std::vector<std::string> names;
  for (const auto& [name, svg] : plots) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"fingerprint-aligned-K2.svg", "fingerprint-paper-K2.svg",
                                             "fingerprint-uniform-K2.svg", "mae-aligned-K2.svg", "kl.svg",
                                             "predicted.svg", "overlap.svg", "spectrum-1.1.svg"}));
  for (const DiagnosedStorage& d : result.storages) {
    EXPECT_NE(tables.find(d.name), std::string::npos);
    EXPECT_NE(plots[3].second.find(d.name), std::string::npos);
    EXPECT_NE(plots.back().second.find(d.name), std::string::npos);
  }
}

}  // namespace
}  // namespace blockgtq::test
