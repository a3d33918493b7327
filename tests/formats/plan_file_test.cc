// Plans on disk: exact round trip, one clear error for each damaged field, systematic damage.
#include "src/formats/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/formats/safetensors.h"
#include "tests/formats/files.h"
#include "tests/formats/sample_plan.h"

namespace blockgtq {
namespace {

using nlohmann::json;
using testing::HasSubstr;

void ExpectSameHead(const HeadPlan& a, const HeadPlan& b) {
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.latent_dims, b.latent_dims);
  EXPECT_EQ(a.groups, b.groups);
  EXPECT_EQ(a.key_transform, b.key_transform);
  EXPECT_EQ(a.query_transform, b.query_transform);
  EXPECT_EQ(a.mean_units, b.mean_units);
  EXPECT_EQ(a.key_mean, b.key_mean);
  EXPECT_EQ(a.value, b.value);
  EXPECT_EQ(a.value_transform, b.value_transform);
  EXPECT_EQ(a.norm_type, b.norm_type);
  EXPECT_EQ(a.rounding, b.rounding);
  EXPECT_EQ(a.score, b.score);
}

TEST(PlanFile, RoundTripIsExact) {
  TemporaryFolder folder;
  const Plan plan = SamplePlan();
  ASSERT_TRUE(plan.Validate().ok()) << plan.Validate().message();
  const Status saved = SavePlan(plan, folder.File("p"));
  ASSERT_TRUE(saved.ok()) << saved.message();
  const auto loaded = LoadPlan(folder.File("p"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->recipe, plan.recipe);
  EXPECT_EQ(loaded->k_bits, plan.k_bits);
  EXPECT_EQ(loaded->v_bits, plan.v_bits);
  EXPECT_EQ(loaded->seed, plan.seed);
  EXPECT_TRUE(loaded->model.ExpectEqual(plan.model).ok());
  EXPECT_EQ(loaded->calibration.corpus_hash, plan.calibration.corpus_hash);
  EXPECT_EQ(loaded->calibration.tokens, plan.calibration.tokens);
  EXPECT_EQ(loaded->calibration.seconds, plan.calibration.seconds);
  ASSERT_EQ(loaded->heads.size(), plan.heads.size());
  for (size_t h = 0; h < plan.heads.size(); ++h) {
    SCOPED_TRACE(h);
    ExpectSameHead(loaded->heads[h], plan.heads[h]);
  }
  EXPECT_EQ(loaded->Hash(), plan.Hash());
}

TEST(PlanFile, APlanOfLatentsIsVersionTwoAndHasNoValues) {
  TemporaryFolder folder;
  Plan plan = SamplePlan();
  for (HeadPlan& head : plan.heads) {
    head.latent_dims = 16;
    head.value = {};
    head.value_transform.clear();
  }
  ASSERT_TRUE(SavePlan(plan, folder.File("p")).ok()) << SavePlan(plan, folder.File("p")).message();
  const auto file = SafetensorsFile::Open(folder.File("p"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->metadata().find("version")->second, "2");
  EXPECT_FALSE((*file)->tensors().contains("layers.0.heads.0.value_transform"));
  const auto loaded = LoadPlan(folder.File("p"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  for (size_t h = 0; h < plan.heads.size(); ++h) ExpectSameHead(loaded->heads[h], plan.heads[h]);
  EXPECT_EQ(loaded->Hash(), plan.Hash());

  plan.heads[1].latent_dims = 32;
  EXPECT_THAT(plan.Validate().message(), HasSubstr("latent"));
  plan.heads[1].latent_dims = 16;
  plan.heads[1].value = SamplePlan().heads[1].value;
  EXPECT_THAT(plan.Validate().message(), HasSubstr("value group"));
  for (HeadPlan& head : plan.heads) head.latent_dims = 24;
  EXPECT_THAT(plan.Validate().message(), HasSubstr("24 dims"));
}

TEST(PlanFile, ABudgetIsKeptBesideThePlanAndChangesNothingInIt) {
  TemporaryFolder folder;
  const Plan plan = SamplePlan();
  PlanBudget budget;
  budget.bytes = 51.25;
  budget.sinks = 4;
  budget.recent = 64;
  budget.probe_bits = 2;
  budget.probe_tokens = 512;
  budget.probes = 360;
  budget.check_tokens = 2048;
  budget.probe_seconds = 12.5;
  budget.exponent = 0.8;
  budget.predicted_kld = 0.0625;
  budget.measured_kld = 1.0 / 3;
  ASSERT_TRUE(SavePlan(plan, folder.File("with"), budget).ok());
  ASSERT_TRUE(SavePlan(plan, folder.File("without")).ok());
  const auto with = LoadPlanBudget(folder.File("with")), without = LoadPlanBudget(folder.File("without"));
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ(*with, std::optional(budget));
  EXPECT_EQ(*without, std::nullopt);
  EXPECT_EQ(LoadPlan(folder.File("with"))->Hash(), plan.Hash());

  budget.exponent = std::numeric_limits<double>::infinity();
  EXPECT_EQ(SavePlan(plan, folder.File("bad"), budget).code(), ErrorCode::kInvalidArgument);
}

// Plans made before say nothing of check tokens: theirs were as many as the probes'.
TEST(PlanFile, ABudgetWithoutCheckTokensStillLoads) {
  TemporaryFolder folder;
  PlanBudget budget;
  budget.probe_tokens = 512;
  budget.check_tokens = 2048;
  ASSERT_TRUE(SavePlan(SamplePlan(), folder.File("plan"), budget).ok());
  const std::vector<std::byte> written = ReadBytes(folder.File("plan"));
  std::string bytes(reinterpret_cast<const char*>(written.data()), written.size());
  const std::string field = R"(\"check_tokens\":2048,)";
  const size_t at = bytes.find(field);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, field.size(), std::string(field.size(), ' '));
  const auto loaded = ParsePlanBudget(std::as_bytes(std::span(bytes)), "plan");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_TRUE(loaded->has_value());
  EXPECT_EQ((*loaded)->check_tokens, 512);
}

TEST(PlanFile, APlanThatIsNotValidIsNotSaved) {
  TemporaryFolder folder;
  Plan plan = SamplePlan();
  plan.heads[1].groups[0].width = 7;
  EXPECT_EQ(SavePlan(plan, folder.File("p")).code(), ErrorCode::kInvalidArgument);
  plan = SamplePlan();
  plan.calibration.seconds = std::numeric_limits<double>::infinity();
  EXPECT_EQ(SavePlan(plan, folder.File("p")).code(), ErrorCode::kInvalidArgument);
  plan = SamplePlan();
  plan.model.architecture = "bad\xff";
  EXPECT_EQ(SavePlan(plan, folder.File("p")).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(folder.Files(), 0);
}

TEST(PlanFile, OpenErrors) {
  EXPECT_EQ(LoadPlan("/no/such/plan").status().code(), ErrorCode::kNotFound);
  const auto other = LoadPlan(BGTQ_TEST_DATA "/formats/tiny.safetensors").status();
  EXPECT_EQ(other.code(), ErrorCode::kCorruptFile);
  EXPECT_THAT(other.message(), HasSubstr("not a plan: metadata 'format' is missing"));
}

// The sample plan taken apart, so that a test can change one thing and put it together again.
struct Parts {
  std::map<std::string, std::string, std::less<>> metadata;
  std::vector<SafetensorsTensor> tensors;
  std::vector<std::vector<std::byte>> data;

  SafetensorsTensor* Tensor(const std::string& name) {
    for (auto& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
};

class DamagedPlan : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SavePlan(SamplePlan(), good_).ok()); }

  Parts TakeApart() const {
    Parts parts;
    const auto file = SafetensorsFile::Open(good_);
    parts.metadata = (*file)->metadata();
    for (const auto& [name, entry] : (*file)->tensors()) {
      parts.data.emplace_back(entry.data.begin(), entry.data.end());
      parts.tensors.push_back({name, entry.dtype, entry.shape, parts.data.back()});
    }
    return parts;
  }

  void Expect(const std::function<void(Parts&)>& damage, const std::string& part,
              ErrorCode code = ErrorCode::kCorruptFile) {
    Parts parts = TakeApart();
    damage(parts);
    const std::string path = folder_.File("damaged");
    const Status written = WriteSafetensors(path, parts.metadata, parts.tensors);
    ASSERT_TRUE(written.ok()) << written.message();
    const Status status = LoadPlan(path).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(part));
    ExpectOneLine(status, path);
  }

  // Changes one JSON document of the metadata.
  void ExpectJson(const char* key, const std::function<void(json&)>& damage, const std::string& part) {
    Expect(
        [&](Parts& parts) {
          json value = json::parse(parts.metadata.at(key));
          damage(value);
          parts.metadata[key] = value.dump();
        },
        part);
  }

  TemporaryFolder folder_;
  const std::string good_ = folder_.File("good");
};

TEST_F(DamagedPlan, PutTogetherUnchangedItLoads) {
  const Parts parts = TakeApart();
  ASSERT_TRUE(WriteSafetensors(folder_.File("same"), parts.metadata, parts.tensors).ok());
  EXPECT_TRUE(LoadPlan(folder_.File("same")).ok());
}

TEST_F(DamagedPlan, FormatAndVersion) {
  Expect([](Parts& p) { p.metadata["format"] = "pt"; }, "not a plan: metadata 'format' is 'pt'");
  Expect([](Parts& p) { p.metadata["version"] = "3"; }, "plan format version 3; this build reads up to 2",
         ErrorCode::kUnsupported);
  Expect([](Parts& p) { p.metadata["version"] = "0"; }, "'version' is 0");
  Expect([](Parts& p) { p.metadata["version"] = "1x"; }, "'version' is '1x', not a number");
}

TEST_F(DamagedPlan, EveryMetadataEntryIsNeeded) {
  for (const auto& [key, value] : TakeApart().metadata) {
    Expect([&](Parts& p) { p.metadata.erase(key); }, "'" + key + "' is missing");
  }
}

TEST_F(DamagedPlan, NumbersAreChecked) {
  for (const char* key : {"k_bits", "v_bits", "seed", "bytes_per_token_per_head"}) {
    for (const char* bad : {"", " 3", "3,0", "three", "1e999"}) {
      Expect([&](Parts& p) { p.metadata[key] = bad; }, std::string("'") + key + "'");
    }
  }
  Expect([](Parts& p) { p.metadata["k_bits"] = "9"; }, "9 bits a dim");
  Expect([](Parts& p) { p.metadata["v_bits"] = "nan"; }, "bits a dim");
  Expect([](Parts& p) { p.metadata["seed"] = "-1"; }, "'seed'");
  Expect([](Parts& p) { p.metadata["bytes_per_token_per_head"] = "1.5"; }, "is 1.5, its groups give");
  Expect([](Parts& p) { p.metadata["bytes_per_token_per_head"] = "nan"; }, "is nan, its groups give");
}

TEST_F(DamagedPlan, EveryFieldOfTheModelAndTheCalibrationIsNeededAndTyped) {
  for (const char* document : {"model", "calibration"}) {
    const json whole = json::parse(TakeApart().metadata.at(document));
    for (const auto& item : whole.items()) {
      const std::string key = item.key();
      ExpectJson(
          document, [&](json& j) { j.erase(key); }, "'" + key + "' is missing");
      for (const json& bad : {json(nullptr), json(true), json::array(), json::object()}) {
        ExpectJson(
            document, [&](json& j) { j[key] = bad; }, "'" + key + "' is not");
      }
    }
    Expect([&](Parts& p) { p.metadata[document] = "[]"; }, "not a JSON object");
    Expect([&](Parts& p) { p.metadata[document] = "{"; }, "not valid JSON");
    Expect([&](Parts& p) { p.metadata[document] = std::string(100'000, '['); }, "nested deeper");
  }
  ExpectJson(
      "model", [](json& j) { j["layers"] = -1; }, "'layers' is not an integer from 1");
  ExpectJson(
      "model", [](json& j) { j["kv_heads"] = ~uint64_t{0}; }, "'kv_heads' is not an integer");
  ExpectJson(
      "model", [](json& j) { j["kv_heads"] = 2.5; }, "'kv_heads' is not an integer");
  ExpectJson(
      "model", [](json& j) { j["layers"] = 3; }, "not an array of the model's 3 layers");
  ExpectJson(
      "model", [](json& j) { j["kv_heads"] = 1; }, "layer 0 is not an array of the model's 1 KV heads");
  ExpectJson(
      "model", [](json& j) { j["head_dim"] = 64; }, "F32 [32, 32]; F32 [32, 64] is needed");
  ExpectJson(
      "model", [](json& j) { j["rope_pairing"] = "other"; }, "pairing 'other'");
}

TEST_F(DamagedPlan, EveryFieldOfAHeadAndAGroupIsNeededAndTyped) {
  const json whole = json::parse(TakeApart().metadata.at("heads"));
  for (const auto& item : whole[1][0].items()) {
    const std::string key = item.key();
    ExpectJson(
        "heads", [&](json& j) { j[1][0].erase(key); }, "layer 1, KV head 0: '" + key + "' is missing");
    ExpectJson(
        "heads", [&](json& j) { j[1][0][key] = 1.5; }, "layer 1, KV head 0: '" + key + "'");
  }
  for (const auto& item : whole[1][0]["groups"][1].items()) {
    const std::string key = item.key();
    ExpectJson(
        "heads", [&](json& j) { j[1][0]["groups"][1].erase(key); }, "group 1: '" + key + "' is missing");
    ExpectJson(
        "heads", [&](json& j) { j[1][0]["value"].erase(key); }, "'value': '" + key + "' is missing");
    ExpectJson(
        "heads", [&](json& j) { j[1][0]["groups"][1][key] = "x"; }, "group 1: '" + key + "' is not");
    if (key != "norm_reference") {
      ExpectJson(
          "heads", [&](json& j) { j[1][0]["groups"][1][key] = -1; }, "group 1: '" + key + "' is not");
      ExpectJson(
          "heads", [&](json& j) { j[1][0]["groups"][1][key] = 1 << 30; }, "'" + key + "' is not");
    }
  }
  ExpectJson(
      "heads", [](json& j) { j[1][0]["norm_type"] = "log9"; }, "norm_type 'log9'");
  ExpectJson(
      "heads", [](json& j) { j[1][0]["rounding"] = "up"; }, "rounding 'up'");
  ExpectJson(
      "heads", [](json& j) { j[1][0]["mean_units"] = {-1}; }, "mean unit");
  ExpectJson(
      "heads", [](json& j) { j[1][0]["mean_units"] = {99}; }, "mean unit 99");
  ExpectJson(
      "heads", [](json& j) { j[1][0]["groups"][0]["norm_reference"] = 1e300; }, "norm_reference");
  ExpectJson(
      "heads", [](json& j) { j[1][0]["groups"][0]["norm_reference"] = 0; }, "norm reference");
  ExpectJson(
      "heads", [](json& j) { j[0] = 5; }, "layer 0 is not an array");
}

TEST_F(DamagedPlan, TensorsAreNeededAndOfTheRightShape) {
  for (const char* name : {"key_transform", "query_transform", "value_transform"}) {
    const std::string tensor = std::string("layers.1.heads.1.") + name;
    Expect([&](Parts& p) { p.Tensor(tensor)->name = "layers.1.heads.7.x"; }, "'" + tensor + "' is missing");
    Expect([&](Parts& p) { p.Tensor(tensor)->shape = {p.Tensor(tensor)->shape[0] * 32}; }, tensor);
    Expect([&](Parts& p) { p.Tensor(tensor)->dtype = "I32"; }, "is I32");
  }
  Expect([](Parts& p) { p.Tensor("layers.0.heads.0.key_mean")->name = "other"; },
         "tensor 'other' does not belong to this plan");
  Expect([](Parts& p) { p.Tensor("layers.0.heads.1.score")->shape = {2, 8}; }, "score' is F32 [2, 8]");
  Expect(
      [](Parts& p) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        auto* tensor = p.Tensor("layers.1.heads.0.value_transform");
        std::memcpy(const_cast<std::byte*>(tensor->data.data()) + 40, &nan, sizeof nan);
      },
      "layer 1, KV head 0");
}

TEST_F(DamagedPlan, EveryTruncationIsAnError) {
  const std::vector<std::byte> bytes = ReadBytes(good_);
  ASSERT_TRUE(ParsePlan(bytes, "whole").ok());
  // Every cut in the header, and a sample of the data's.
  for (size_t size = 0; size < bytes.size(); size += size < 8192 ? 1 : 509) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    const Status status = ParsePlan(cut, "cut").status();
    EXPECT_FALSE(status.ok()) << size;
    ExpectOneLine(status, "cut");
  }
}

TEST_F(DamagedPlan, DamageGivesSuccessOrOneError) {
  const auto parse = [](std::span<const std::byte> bytes, const std::string& name) {
    return ParsePlan(bytes, name).status();
  };
  EXPECT_GT(ExpectDamageIsHandled(ReadBytes(good_), 5000, parse), 5000);
}

}  // namespace
}  // namespace blockgtq
