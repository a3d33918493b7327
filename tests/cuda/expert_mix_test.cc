// Mixtures of experts against double precision: who is chosen, how choices are grouped, and the sum.
//
//   expert_mix_test [quick]    quick: a few small cases, for compute-sanitizer
//
#include "src/cuda/expert_mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "src/core/half.h"
#include "src/cuda/matmul_item.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/harness.h"

namespace blockgtq::cuda {
namespace {

struct MixCase {
  int experts, chosen;
  int64_t rows, cols, inner;
  bool renormalise = true, low = false;
  GateFunction function = GateFunction::kSilu;
  float scale = 1;
  std::string Name() const {
    return std::to_string(rows) + " rows, " + std::to_string(chosen) + " of " + std::to_string(experts) +
           " experts, [" + std::to_string(cols) + ", " + std::to_string(inner) + "]" +
           (renormalise ? ", renormalised" : "") + (low ? ", low halves" : "") +
           (function == GateFunction::kSilu ? "" : ", GELU");
  }
};

std::vector<float> Normals(size_t count, double size, unsigned seed) {
  std::vector<float> out(count);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, size);
  for (float& f : out) f = static_cast<float>(normal(random));
  return out;
}
std::vector<uint16_t> Halves(const std::vector<float>& x) {
  std::vector<uint16_t> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = FloatToHalf(x[i]);
  return out;
}

// Of every row, the experts in order and their weights.
struct Expected {
  std::vector<int> expert;
  std::vector<double> weight;
};
Expected Choose(const MixCase& c, const std::vector<float>& logits) {
  Expected out;
  for (int64_t r = 0; r < c.rows; ++r) {
    const float* row = &logits[r * c.experts];
    std::vector<int> order(c.experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    double total = 0, taken = 0;
    for (int e = 0; e < c.experts; ++e) total += std::exp(double{row[e]} - row[order[0]]);
    for (int i = 0; i < c.chosen; ++i) taken += std::exp(double{row[order[i]]} - row[order[0]]);
    for (int i = 0; i < c.chosen; ++i) {
      out.expert.push_back(order[i]);
      out.weight.push_back(c.scale * std::exp(double{row[order[i]]} - row[order[0]]) /
                           (c.renormalise ? taken : total));
    }
  }
  return out;
}

class MixFixture {
 public:
  explicit MixFixture(const MixCase& c) : c_(c) {
    // A few values only, so that many logits are equal.
    logits_ = Normals(c.rows * c.experts, 1.5, 1);
    for (float& x : logits_) x = std::round(4 * x) / 4;
    x_ = Normals(c.rows * c.cols, 1, 2);
    y_ = Normals(c.rows * c.cols, 1, 3);
    for (int e = 0; e < c.experts; ++e) {
      gates_.push_back(Halves(Normals(c.inner * c.cols, 1 / std::sqrt(double(c.cols)), 10 + 3 * e)));
      ups_.push_back(Halves(Normals(c.inner * c.cols, 1 / std::sqrt(double(c.cols)), 11 + 3 * e)));
      downs_.push_back(Halves(Normals(c.inner * c.cols, 1 / std::sqrt(double(c.inner)), 12 + 3 * e)));
    }
  }

  void Run() {
    const int64_t choices = c_.rows * c_.chosen;
    DeviceArray<int32_t> expert(choices), grouped(choices), group_count(1);
    DeviceArray<float> weight(choices);
    DeviceArray<ExpertGroup> groups(c_.experts);
    expert.Fill(0xff), grouped.Fill(0xff), groups.Fill(0xff), weight.Fill(0xff), group_count.Fill(0xff);
    ExpertRoutes routes{c_.rows,       c_.experts,     c_.chosen,     expert.data(),
                        weight.data(), grouped.data(), groups.data(), group_count.data()};
    const DeviceArray<float> logits(logits_);
    Require(LaunchRouteExperts(logits.data(), c_.renormalise, c_.scale, routes, true, nullptr), "routes");
    const Expected expected = Choose(c_, logits_);
    CheckRoutes(expected, expert.Download(), weight.Download(), grouped.Download(), groups.Download(),
                group_count.Download()[0]);

    std::vector<uint16_t> hi = Halves(x_), lo(x_.size());
    for (size_t i = 0; i < x_.size(); ++i) lo[i] = FloatToHalf((x_[i] - HalfToFloat(hi[i])) * kLowHalfScale);
    const DeviceArray<uint16_t> x_hi(hi), x_lo(lo);
    DeviceArray<uint16_t> inner_hi(choices * c_.inner), inner_lo(choices * c_.inner);
    DeviceArray<float> out(choices * c_.cols), y(y_);
    inner_hi.Fill(0xff), inner_lo.Fill(0xff), out.Fill(0xff);
    std::vector<DeviceArray<uint16_t>> matrices;
    const auto upload = [&](const std::vector<std::vector<uint16_t>>& of) {
      std::vector<const uint16_t*> pointers;
      for (const auto& matrix : of) pointers.push_back(matrices.emplace_back(matrix).data());
      return pointers;
    };
    const auto gates = upload(gates_), ups = upload(ups_), downs = upload(downs_);
    uint16_t* const second = c_.low ? inner_lo.data() : nullptr;
    Require(LaunchExpertGate(gates, ups, c_.function, {x_hi.data(), c_.low ? x_lo.data() : nullptr, 1},
                             routes, c_.cols, c_.inner, inner_hi.data(), second, true, nullptr),
            "gate");
    Require(LaunchExpertDown(downs, {inner_hi.data(), second, kInnerScale}, routes, c_.inner, c_.cols,
                             out.data(), true, nullptr),
            "down");
    Require(LaunchCombineExperts(out.data(), routes, c_.cols, y.data(), true, nullptr), "sum");
    CheckSum(expected, c_.low ? x_ : Widened(hi), y.Download());
  }

 private:
  static std::vector<float> Widened(const std::vector<uint16_t>& halves) {
    std::vector<float> out(halves.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = HalfToFloat(halves[i]);
    return out;
  }

  void CheckRoutes(const Expected& expected, const std::vector<int32_t>& expert,
                   const std::vector<float>& weight, const std::vector<int32_t>& grouped,
                   const std::vector<ExpertGroup>& groups, int32_t group_count) const {
    size_t bad = 0;
    std::vector<int> counts(c_.experts);
    for (size_t i = 0; i < expected.expert.size(); ++i) {
      bad += expert[i] != expected.expert[i];
      bad += !(std::fabs(weight[i] - expected.weight[i]) <= 2e-6 * expected.weight[i]);
      ++counts[expected.expert[i]];
    }
    Check(bad == 0, c_.Name() + ": " + std::to_string(bad) + " choices or weights are wrong");
    std::vector<int> seen(expected.expert.size());
    int place = 0, first = 0;
    bad = 0;
    for (int e = 0; e < c_.experts; ++e) {
      if (counts[e] == 0) continue;
      const ExpertGroup& g = groups[place++];
      bad += g.expert != e || g.first != first || g.count != counts[e];
      for (int i = 0; i < counts[e]; ++i) {
        const int32_t choice = grouped[first + i];
        const bool inside = choice >= 0 && choice < static_cast<int32_t>(seen.size());
        bad += !inside || expected.expert[choice] != e || seen[choice]++ != 0;
      }
      first += counts[e];
    }
    Check(bad == 0 && group_count == place, c_.Name() + ": choices are grouped by expert");
  }

  void CheckSum(const Expected& expected, const std::vector<float>& x, const std::vector<float>& got) const {
    double error = 0, size = 0;
    std::vector<double> inner(c_.inner);
    for (int64_t r = 0; r < c_.rows; ++r) {
      std::vector<double> sum(c_.cols);
      for (int i = 0; i < c_.chosen; ++i) {
        const int e = expected.expert[r * c_.chosen + i];
        for (int64_t n = 0; n < c_.inner; ++n) {
          double gate = 0, up = 0;
          for (int64_t k = 0; k < c_.cols; ++k) {
            gate += HalfToFloat(gates_[e][n * c_.cols + k]) * double{x[r * c_.cols + k]};
            up += HalfToFloat(ups_[e][n * c_.cols + k]) * double{x[r * c_.cols + k]};
          }
          const double z = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
          inner[n] = up * (c_.function == GateFunction::kSilu ? gate / (1 + std::exp(-gate))
                                                              : 0.5 * gate * (1 + std::tanh(z)));
        }
        for (int64_t k = 0; k < c_.cols; ++k) {
          double out = 0;
          for (int64_t n = 0; n < c_.inner; ++n) out += HalfToFloat(downs_[e][k * c_.inner + n]) * inner[n];
          sum[k] += expected.weight[r * c_.chosen + i] * out;
        }
      }
      for (int64_t k = 0; k < c_.cols; ++k) {
        const double added = double{got[r * c_.cols + k]} - y_[r * c_.cols + k];
        error += (added - sum[k]) * (added - sum[k]);
        size += sum[k] * sum[k];
      }
    }
    // Without low halves, what the gate passes is rounded to fp16: 2^-11 at most, 2^-12.8 on average.
    const double relative = std::sqrt(error / size), limit = c_.low ? 3e-6 : 3e-4;
    Check(relative <= limit, c_.Name() + ": the sum is off by " + std::to_string(relative));
  }

  MixCase c_;
  std::vector<float> logits_, x_, y_;
  std::vector<std::vector<uint16_t>> gates_, ups_, downs_;
};

void TestRefusals() {
  ExpertRoutes routes;
  routes.rows = 1;
  routes.experts = kMaxExperts + 1;
  routes.chosen = 2;
  const auto refused = [&](const char* named) {
    const Status status = LaunchRouteExperts(nullptr, true, 1, routes, false, nullptr);
    Check(status.code() == ErrorCode::kUnsupported && status.message().find(named) != std::string::npos,
          std::string("refused by name: ") + named + ": " + status.message());
  };
  refused("257 experts");
  routes.experts = 64;
  routes.chosen = kMaxChosen + 1;
  refused("33 experts a row");
  routes.chosen = 2;
  const Status odd =
      LaunchExpertGate({}, {}, GateFunction::kSilu, {}, routes, 12, 16, nullptr, nullptr, false, nullptr);
  Check(odd.code() == ErrorCode::kUnsupported && odd.message().find("12") != std::string::npos,
        "12 columns are refused by name: " + odd.message());
}

void Run(const DeviceLimits&, bool quick) {
  std::vector<MixCase> cases = {
      {8, 2, 1, 64, 32},
      {8, 2, 40, 64, 40, true, true},  // several reads of an expert's weights
      {60, 4, 3, 72, 88, false, false, GateFunction::kGeluTanh, 2.5f},
      {4, 4, 5, 32, 24, true, true, GateFunction::kGeluTanh},
      {1, 1, 9, 40, 16},
  };
  if (!quick) {
    cases.push_back({128, 8, 1, 2048, 768});
    cases.push_back({128, 8, 7, 512, 768, true, true});
    cases.push_back({256, 32, 20, 136, 56, false});
    cases.push_back({64, 6, 150, 256, 176, false, false, GateFunction::kSilu, 16});
  }
  for (const MixCase& c : cases) MixFixture(c).Run();
  TestRefusals();
}

}  // namespace
}  // namespace blockgtq::cuda

int main(int argc, char** argv) { return blockgtq::cuda::RunTests(argc, argv, blockgtq::cuda::Run); }
