// The router's choice and the mixture of experts of the CPU backend, against the definition in double.
#include "src/cpu/expert_mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "src/cpu/cpu_backend.h"

namespace blockgtq::cpu {
namespace {

struct Choice {
  std::vector<int> experts;
  std::vector<float> weights;
};

Choice Choose(std::vector<float> logits, size_t chosen, bool renormalise, float scale = 1) {
  Choice choice{std::vector<int>(chosen), std::vector<float>(chosen)};
  ChooseExperts(logits, renormalise, scale, choice.experts, choice.weights);
  return choice;
}

TEST(ChooseExperts, TakesTheLargestProbabilitiesOfTheSoftmaxOverAll) {
  const Choice c = Choose({std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)}, 2, false);
  EXPECT_EQ(c.experts, (std::vector<int>{1, 3}));
  EXPECT_NEAR(c.weights[0], 0.4f, 1e-6f);
  EXPECT_NEAR(c.weights[1], 0.3f, 1e-6f);
}

TEST(ChooseExperts, RenormalisedWeightsSumToTheScale) {
  const Choice c = Choose({std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)}, 2, true, 2.5f);
  EXPECT_NEAR(c.weights[0], 2.5f * 4 / 7, 1e-6f);
  EXPECT_NEAR(c.weights[1], 2.5f * 3 / 7, 1e-6f);
}

TEST(ChooseExperts, OfEqualsTheLowerIndexIsTakenAndHugeLogitsStayFinite) {
  const Choice c = Choose({-3e38f, 1e4f, 1e4f, 1e4f}, 2, false);
  EXPECT_EQ(c.experts, (std::vector<int>{1, 2}));
  for (float w : c.weights) EXPECT_NEAR(w, 1.0f / 3, 1e-6f);
}

TEST(ChooseExperts, ANanIsNeverAheadOfANumberAndMakesEveryWeightNan) {
  for (const bool renormalise : {true, false}) {
    const Choice c = Choose({std::numeric_limits<float>::quiet_NaN(), -5, -6, -7}, 2, renormalise);
    EXPECT_EQ(c.experts, (std::vector<int>{1, 2}));
    for (float w : c.weights) EXPECT_TRUE(std::isnan(w)) << renormalise;
  }
}

class Mixture {
 public:
  static constexpr int64_t kCols = 32, kInner = 48;
  static constexpr int kExperts = 5, kChosen = 2;

  Mixture() : backend_(CreateCpuBackend({.threads = 2}).value()) {
    backend_->SetPrecision(Precision::kFloat);
    Add(kExperts, kCols);
    for (int e = 0; e < kExperts; ++e) {
      Add(kInner, kCols);
      Add(kInner, kCols);
      Add(kCols, kInner);
    }
    for (size_t i = 0; i < data_.size(); ++i) {
      const auto [rows, cols] = shapes_[i];
      const TensorView view{TensorType::kF32, reinterpret_cast<const std::byte*>(data_[i].data()), rows,
                            cols};
      weights_.push_back(backend_->LoadMatrix(view, "w").value());
    }
    for (size_t e = 0; e < kExperts; ++e)
      experts_.push_back({weights_[1 + 3 * e].get(), weights_[2 + 3 * e].get(), weights_[3 + 3 * e].get()});
  }

  /// y [rows, kCols] of rows of x, added to `before`.
  std::vector<float> Run(const std::vector<float>& x, const std::vector<float>& before) {
    const auto rows = static_cast<int64_t>(x.size()) / kCols;
    CpuActivations in(rows, kCols), out(rows, kCols);
    std::memcpy(in.row(0), x.data(), x.size() * sizeof(float));
    std::memcpy(out.row(0), before.data(), before.size() * sizeof(float));
    const ExpertMix mix{weights_[0].get(), experts_, kInner, kChosen, true, 0.5f, GateFunction::kSilu};
    EXPECT_TRUE(backend_->MixExperts(mix, in, rows, out).ok());
    return {out.row(0), out.row(0) + x.size()};
  }

  /// The definition, one row, in double.
  std::vector<double> Expected(const float* x, const float* before) const {
    const std::vector<double> in(x, x + kCols), logits = Times(0, in);
    std::vector<double> out(before, before + kCols);
    std::vector<int> order(kExperts);
    for (int e = 0; e < kExperts; ++e) order[static_cast<size_t>(e)] = e;
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)]; });
    double total = 0;
    for (int i = 0; i < kChosen; ++i) total += std::exp(logits[static_cast<size_t>(order[i])]);
    for (int i = 0; i < kChosen; ++i) {
      const auto e = static_cast<size_t>(order[i]);
      std::vector<double> gate = Times(1 + 3 * e, in);
      const std::vector<double> up = Times(2 + 3 * e, in);
      for (size_t j = 0; j < gate.size(); ++j) gate[j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
      const std::vector<double> down = Times(3 + 3 * e, gate);
      for (size_t c = 0; c < out.size(); ++c) out[c] += 0.5 * std::exp(logits[e]) / total * down[c];
    }
    return out;
  }

 private:
  void Add(int64_t rows, int64_t cols) {
    shapes_.emplace_back(rows, cols);
    std::normal_distribution<float> normal(0, 0.3f);
    std::vector<float>& w = data_.emplace_back(static_cast<size_t>(rows * cols));
    for (float& x : w) x = normal(random_);
  }
  std::vector<double> Times(size_t weight, const std::vector<double>& x) const {
    std::vector<double> y(static_cast<size_t>(shapes_[weight].first));
    for (size_t r = 0; r < y.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) y[r] += double{data_[weight][r * x.size() + c]} * x[c];
    }
    return y;
  }

  std::mt19937 random_{5};
  std::unique_ptr<Backend> backend_;
  std::vector<std::vector<float>> data_;
  std::vector<std::pair<int64_t, int64_t>> shapes_;
  std::vector<std::unique_ptr<Weight>> weights_;
  std::vector<GatedWeights> experts_;
};

TEST(MixExperts, AddsTheDefinitionInBatchesAndRowByRow) {
  Mixture mixture;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(40 * Mixture::kCols), before(x.size());
  for (float& v : x) v = normal(random);
  for (float& v : before) v = normal(random);
  const std::vector<float> y = mixture.Run(x, before);
  for (size_t r = 0; r < 40; ++r) {
    const size_t at = r * Mixture::kCols;
    const std::vector<double> expected = mixture.Expected(&x[at], &before[at]);
    const auto row = [&](const std::vector<float>& v) {
      return std::vector<float>(v.begin() + static_cast<int64_t>(at),
                                v.begin() + static_cast<int64_t>(at) + Mixture::kCols);
    };
    const std::vector<float> alone = mixture.Run(row(x), row(before));
    for (size_t c = 0; c < expected.size(); ++c) {
      EXPECT_NEAR(y[at + c], expected[c], 1e-5) << "row " << r << " column " << c;
      EXPECT_NEAR(alone[c], y[at + c], 1e-6) << "row " << r << " column " << c;
    }
  }
}

}  // namespace
}  // namespace blockgtq::cpu
