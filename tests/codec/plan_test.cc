// Plans: every kind of damage is found and named, the hash covers what decides meaning, fingerprints compare.
#include "src/codec/plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/codec/codec_fixtures.h"

namespace blockgtq {
namespace {

Plan MakePlan() {
  Plan plan;
  plan.recipe = "aligned";
  plan.k_bits = plan.v_bits = 3;
  plan.seed = 4;
  plan.model = {"llama", 2, 4, 1, 40, 10000.0, 40, "neox", "00", "11"};
  plan.calibration = {"22", 2048, 1.5};
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<double> scale(20);
    for (int i = 0; i < 20; ++i) scale[i] = std::exp2(i - 10);  // a thousandfold either way is still valid
    HeadPlan head = test::MakeHead(40, {{7, 8}, {4, 8}, {2, 4}}, 3, NormType::kLog8, 1 + layer, scale);
    test::SetMean(head, {0, 2}, 1.0, 5);
    head.score.assign(20, 1.0f);
    plan.heads.push_back(head);
  }
  return plan;
}

TEST(Plan, AWellFormedPlanIsValid) {
  const Status status = MakePlan().Validate();
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Plan, ValidateNamesEveryKindOfDamage) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Damage {
    const char* says;  // part of the message
    std::function<void(Plan&)> apply;
  };
  const auto head = [](auto f) { return [f](Plan& p) { f(p.heads[1]); }; };
  const std::vector<Damage> damages = {
      {"no recipe", [](Plan& p) { p.recipe.clear(); }},
      {"bits a dim", [](Plan& p) { p.k_bits = -1; }},
      {"bits a dim", [](Plan& p) { p.v_bits = std::nan(""); }},
      {"layer count", [](Plan& p) { p.model.layers = 0; }},
      {"layer count", [](Plan& p) { p.model.layers = 1 << 30; }},
      {"KV head count", [](Plan& p) { p.model.kv_heads = -1; }},
      {"do not divide", [](Plan& p) { p.model.heads = 5, p.model.kv_heads = 2; }},
      {"head dim 41", [](Plan& p) { p.model.head_dim = 41; }},
      {"head dim", [](Plan& p) { p.model.head_dim = 1 << 20; }},
      {"rotary dims", [](Plan& p) { p.model.rotary_dims = 64; }},
      {"RoPE base", [](Plan& p) { p.model.rope_freq_base = 0; }},
      {"RoPE pairing", [](Plan& p) { p.model.rope_pairing = "gptj"; }},
      {"2 head plans, expected 3", [](Plan& p) { p.model.layers = 3; }},
      {"head dim 38", head([](HeadPlan& h) { h.head_dim = 38; })},
      {"norm type", head([](HeadPlan& h) { h.norm_type = static_cast<NormType>(9); })},
      {"no key group", head([](HeadPlan& h) { h.groups.clear(); })},
      {"width 7 is not one of", head([](HeadPlan& h) { h.groups[0].width = 7; })},
      {"width 0 is not one of", head([](HeadPlan& h) { h.groups[2].width = 0; })},
      {"code width", head([](HeadPlan& h) { h.groups[1].code_width = 5; })},
      {"do not hold", head([](HeadPlan& h) { h.groups[0].units = 2; })},
      {"do not hold", head([](HeadPlan& h) { h.groups[0].dims = -4; })},
      {"do not hold", head([](HeadPlan& h) { h.groups[0].units = 1 << 30; })},
      {"starts at unit", head([](HeadPlan& h) { h.groups[1].first_unit = 0; })},
      {"descending width", head([](HeadPlan& h) {
         std::swap(h.groups[1].width, h.groups[2].width),
             std::swap(h.groups[1].code_width, h.groups[2].code_width);
       })},
      {"hold 32 dims", head([](HeadPlan& h) { h.groups.pop_back(); })},
      {"norm reference", head([](HeadPlan& h) { h.groups[0].norm_reference = 0; })},
      {"norm reference", head([](HeadPlan& h) { h.value.norm_reference = kNan; })},
      {"value group must hold", head([](HeadPlan& h) { h.value.dims = 38; })},
      {"value group must hold", head([](HeadPlan& h) { h.value.first_unit = 1; })},
      {"key transform has", head([](HeadPlan& h) { h.key_transform.pop_back(); })},
      {"query transform has", head([](HeadPlan& h) { h.query_transform.clear(); })},
      {"value transform has", head([](HeadPlan& h) { h.value_transform.resize(1); })},
      {"key transform has a NaN", head([](HeadPlan& h) { h.key_transform[7] = kNan; })},
      {"not zero in its padding", head([](HeadPlan& h) { h.key_transform.back() = 1e-9f; })},
      {"not zero in its padding", head([](HeadPlan& h) { h.value_transform.back() = 1.0f; })},
      {"not the inverse transpose", head([](HeadPlan& h) { h.key_transform[3] *= 1.1f; })},
      {"not the inverse transpose", head([](HeadPlan& h) { h.query_transform[41] *= -1; })},
      {"not the inverse transpose",
       head([](HeadPlan& h) { std::fill(h.key_transform.begin(), h.key_transform.end(), 0.0f); })},
      {"not orthogonal", head([](HeadPlan& h) { h.value_transform[0] += 0.01f; })},
      {"both be present", head([](HeadPlan& h) { h.key_mean.clear(); })},
      {"both be present", head([](HeadPlan& h) { h.mean_units.clear(); })},
      {"key mean has", head([](HeadPlan& h) { h.key_mean.pop_back(); })},
      {"mean unit 3", head([](HeadPlan& h) { h.mean_units[1] = 3; })},
      {"mean unit 0", head([](HeadPlan& h) { h.mean_units[1] = 0; })},
      {"mean unit -1", head([](HeadPlan& h) { h.mean_units[0] = -1; })},
      {"key mean element 20", head([](HeadPlan& h) { h.key_mean[20] = 1.0f; })},
      {"key mean element 2", head([](HeadPlan& h) { h.key_mean[2] = kNan; })},
      {"score", head([](HeadPlan& h) { h.score.pop_back(); })},
      {"score", head([](HeadPlan& h) { h.score[0] = kNan; })},
  };
  for (const Damage& damage : damages) {
    Plan plan = MakePlan();
    damage.apply(plan);
    const Status status = plan.Validate();
    EXPECT_EQ(status.code(), ErrorCode::kCorruptFile) << damage.says;
    EXPECT_NE(status.message().find(damage.says), std::string::npos)
        << "expected '" << damage.says << "' in: " << status.message();
  }
}

TEST(Plan, ValidateNamesTheHead) {
  Plan plan = MakePlan();
  plan.heads[1].value_transform[0] += 0.01f;
  EXPECT_NE(plan.Validate().message().find("layer 1, KV head 0"), std::string::npos);
}

TEST(Plan, HashCoversWhatDecidesTheBytesMeaningAndNothingElse) {
  const std::string hash = MakePlan().Hash();
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash, MakePlan().Hash());
  const std::vector<std::function<void(Plan&)>> same = {
      [](Plan& p) { p.recipe = "other"; }, [](Plan& p) { p.seed = 9; }, [](Plan& p) { p.k_bits = 4; },
      [](Plan& p) { p.calibration.tokens = 1; }, [](Plan& p) { p.heads[0].score[0] = 2; }};
  const std::vector<std::function<void(Plan&)>> different = {
      [](Plan& p) { p.model.rope_freq_base = 5e5; },
      [](Plan& p) { p.model.rope_pairing = "norm"; },
      [](Plan& p) { p.model.rope_scaling_hash = "0123"; },
      [](Plan& p) { p.model.key_weights_hash = "0123"; },
      [](Plan& p) { p.heads[0].norm_type = NormType::kHalf; },
      [](Plan& p) { p.heads[0].groups[1].width = 5; },
      [](Plan& p) { p.heads[0].groups[0].code_width = 6; },
      [](Plan& p) { p.heads[0].groups[0].norm_reference *= 2; },
      [](Plan& p) { p.heads[1].key_transform[5] += 1e-3f; },
      [](Plan& p) { p.heads[1].query_transform[5] += 1e-3f; },
      [](Plan& p) { p.heads[1].value_transform[5] += 1e-3f; },
      [](Plan& p) { p.heads[1].key_mean[0] += 1e-3f; },
      [](Plan& p) {
        p.heads[1].mean_units = {0, 1};
      },
      [](Plan& p) { p.heads[1].value.norm_reference *= 2; },
      [](Plan& p) { std::swap(p.heads[0], p.heads[1]); }};
  for (size_t i = 0; i < same.size(); ++i) {
    Plan plan = MakePlan();
    same[i](plan);
    EXPECT_EQ(plan.Hash(), hash) << i;
  }
  for (size_t i = 0; i < different.size(); ++i) {
    Plan plan = MakePlan();
    different[i](plan);
    EXPECT_NE(plan.Hash(), hash) << i;
  }
}

TEST(Plan, FingerprintMismatchNamesTheFieldAndBothValues) {
  const ModelFingerprint model = MakePlan().model;
  EXPECT_TRUE(model.ExpectEqual(model).ok());
  struct Change {
    const char* field;
    std::function<void(ModelFingerprint&)> apply;
  };
  for (const Change& change : std::vector<Change>{
           {"architecture is llama, the model's is qwen2", [](auto& m) { m.architecture = "qwen2"; }},
           {"layer count is 2, the model's is 3", [](auto& m) { m.layers = 3; }},
           {"query head count", [](auto& m) { m.heads = 8; }},
           {"KV head count", [](auto& m) { m.kv_heads = 2; }},
           {"head dim", [](auto& m) { m.head_dim = 64; }},
           {"RoPE base", [](auto& m) { m.rope_freq_base = 1; }},
           {"rotary dims", [](auto& m) { m.rotary_dims = 20; }},
           {"RoPE pairing is neox, the model's is norm", [](auto& m) { m.rope_pairing = "norm"; }},
           {"RoPE scaling hash", [](auto& m) { m.rope_scaling_hash = "0123"; }},
           {"key weights hash", [](auto& m) { m.key_weights_hash = "0123"; }}}) {
    ModelFingerprint other = model;
    change.apply(other);
    const Status status = model.ExpectEqual(other);
    EXPECT_EQ(status.code(), ErrorCode::kMismatch);
    EXPECT_NE(status.message().find(change.field), std::string::npos) << status.message();
  }
}

TEST(Plan, StoredBytesCountPaddingAndNorms) {
  // Per token: K units 16 dims x (8 + 4 + 2) bits, V 3 units x 16 dims x 3 bits, four norm bytes.
  EXPECT_DOUBLE_EQ(MakePlan().bytes_per_token_per_head(), 2 * (8 + 4 + 2) + 3 * 2 * 3 + 4);
  EXPECT_EQ(Plan().bytes_per_token_per_head(), 0.0);
}

}  // namespace
}  // namespace blockgtq
