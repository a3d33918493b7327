// The error model of a budget: cautious where measured plans do not differ by more than chance.
#include "src/eval/error_model_search.h"

#include <gtest/gtest.h>

#include <cmath>

namespace blockgtq::test {
namespace {

using Measure = std::function<double(const ErrorModel&)>;

ErrorModel Choose(const Measure& measure) {
  const auto model = ChooseErrorModel([&](const ErrorModel& m) -> Result<double> { return measure(m); });
  EXPECT_TRUE(model.ok());
  return *model;
}

TEST(ChooseErrorModel, OfEqualPlansTheOneThatTrustsProbesLeast) {
  const ErrorModel model = Choose([](const ErrorModel&) { return 0.05; });
  EXPECT_NEAR(model.trust, 0.36, 1e-9);  // a step more would be below what a parameter goes to
  EXPECT_EQ(model.exponent, 1);
}

TEST(ChooseErrorModel, TrustStaysWhereLessCostsMoreThanChance) {
  EXPECT_EQ(Choose([](const ErrorModel& m) { return m.trust < 1 ? 1.06 : 1; }).trust, 1);
  // In all and not at each step: 1, 1.03, 1.06.
  const auto creeping = [](const ErrorModel& m) { return 1 + 0.03 * std::log(m.trust) / std::log(0.6); };
  EXPECT_NEAR(Choose(creeping).trust, 0.6, 1e-9);
  // A better model on the way down sets the bar.
  const auto dipping = [](const ErrorModel& m) { return m.trust == 1 ? 1 : m.trust > 0.5 ? 0.9 : 0.95; };
  EXPECT_NEAR(Choose(dipping).trust, 0.6, 1e-9);
}

TEST(ChooseErrorModel, TheExponentChangesForMoreThanChance) {
  EXPECT_EQ(Choose([](const ErrorModel& m) { return m.exponent < 1 ? 0.97 : 1; }).exponent, 1);
  EXPECT_EQ(Choose([](const ErrorModel& m) { return m.exponent < 1 ? 0.9 : 1; }).exponent, 0.8);
  EXPECT_EQ(Choose([](const ErrorModel& m) {
              return m.exponent > 1.3 ? 0.8 : m.exponent > 1 ? 0.9 : 1;
            }).exponent,
            1.25 * 1.25);
}

TEST(ChooseErrorModel, AFailedMeasurementIsHandedOn) {
  int calls = 0;
  const auto failing = [&](const ErrorModel&) -> Result<double> {
    if (++calls < 3) return 1.0;
    return Status(ErrorCode::kCancelled, "stopped");
  };
  EXPECT_EQ(ChooseErrorModel(failing).status().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace blockgtq::test
