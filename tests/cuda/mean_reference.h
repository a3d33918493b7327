// The key mean's part of the logits of one query head, in double precision but for what the kernel rounds to
// fp16 (src/cuda/mean_bias.cuh): of the series, factors, phases, coefficients and polynomials of degree 2 and
// more; of direct units, the query turned back to the middle of its 32 tokens and the mean turned on from
// there.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "src/codec/plan.h"
#include "src/core/half.h"
#include "src/core/rope.h"
#include "src/cuda/mean_table.h"

namespace blockgtq::cuda {

inline double ThroughHalf(double x) { return HalfToFloat(FloatToHalf(static_cast<float>(x))); }

class RoundedMean {
 public:
  RoundedMean(const HeadPlan& plan, const RopeTable& rope, const std::vector<double>& query,
              double logit_scale, int64_t first_position)
      : plan_(plan),
        rope_(rope),
        query_(query),
        scale_(logit_scale),
        first_position_(first_position),
        units_(SplitMeanUnits(plan, rope.config())) {
    for (int unit : plan.mean_units) {
      if (IsDirect(unit)) continue;
      for (int block = kMeanUnitBlocks * unit; block < kMeanUnitBlocks * (unit + 1); ++block) {
        std::vector<std::complex<double>> factors;
        std::complex<double> turn = 1;
        for (int n = 0; n < kDegrees; ++n, turn *= std::complex<double>(0, 1)) {
          const bool has = SeriesSlots(plan.head_dim, n / 2) > unit - units_.series_first;
          const double bessel = has ? std::cyl_bessel_j(n, 16 * rope.frequencies()[block]) : 0.0;
          factors.push_back((n == 0 ? 1.0 : 2.0) * bessel * turn * std::conj(Query(block)) * Mean(block) *
                            scale_);
        }
        blocks_.push_back({block, factors});
      }
    }
  }

  /// Of a token, counted from first_position; quick for tokens in order.
  double At(int64_t token) {
    const int64_t position = first_position_ + token, half_tile = position / 32;
    const int r = static_cast<int>(position % 32);
    if (half_tile != half_tile_) ComputeCoefficients(half_tile);
    const double x = (r - 15.5) / 16, angle = std::acos(x);
    double logit = 0;
    for (int n = 0; n < kDegrees; ++n) {
      const double polynomial = std::cos(n * angle);
      logit += coefficients_[n] * (n < 2 ? polynomial : ThroughHalf(polynomial));
    }
    for (int unit : units_.direct) {
      for (int block = kMeanUnitBlocks * unit; block < kMeanUnitBlocks * (unit + 1); ++block) {
        logit += Direct(block, 32.0 * half_tile + 15.5, r - 15.5);
      }
    }
    return logit;
  }

 private:
  static constexpr int kDegrees = 14;
  struct Block {
    int index;
    std::vector<std::complex<double>> factors;
  };

  bool IsDirect(int unit) const {
    return std::find(units_.direct.begin(), units_.direct.end(), unit) != units_.direct.end();
  }
  std::complex<double> Query(int block) const { return {query_[2 * block], query_[2 * block + 1]}; }
  std::complex<double> Mean(int block) const {
    const double factor = 2 * block < rope_.config().rotary_dims ? rope_.config().attention_factor : 1.0;
    return factor * std::complex<double>(plan_.key_mean[2 * block], plan_.key_mean[2 * block + 1]);
  }
  void ComputeCoefficients(int64_t half_tile) {
    half_tile_ = half_tile;
    coefficients_.assign(kDegrees, 0.0);
    for (const Block& b : blocks_) {
      const double phase = (32.0 * static_cast<double>(half_tile) + 15.5) * rope_.frequencies()[b.index];
      const double cosine = std::cos(phase), sine = std::sin(phase);
      for (int n = 0; n < kDegrees; ++n) {
        coefficients_[n] += n < 2 ? b.factors[n].real() * cosine - b.factors[n].imag() * sine
                                  : ThroughHalf(b.factors[n].real()) * ThroughHalf(cosine) -
                                        ThroughHalf(b.factors[n].imag()) * ThroughHalf(sine);
      }
    }
    for (int n = 2; n < kDegrees; ++n) coefficients_[n] = ThroughHalf(coefficients_[n]);
  }
  double Direct(int block, double centre, double offset) const {
    const double theta = rope_.frequencies()[block];
    const double cosine = ThroughHalf(std::cos(centre * theta)), sine = ThroughHalf(std::sin(centre * theta));
    const double q0 = ThroughHalf(query_[2 * block] * scale_),
                 q1 = ThroughHalf(query_[2 * block + 1] * scale_);
    const double b0 = ThroughHalf(q0 * cosine + ThroughHalf(q1 * sine)),
                 b1 = ThroughHalf(q1 * cosine - ThroughHalf(q0 * sine));
    const std::complex<double> k = Mean(block) * std::polar(1.0, offset * theta);
    return b0 * ThroughHalf(k.real()) + b1 * ThroughHalf(k.imag());
  }

  const HeadPlan& plan_;
  const RopeTable& rope_;
  const std::vector<double>& query_;
  double scale_;
  int64_t first_position_;
  MeanUnits units_;
  std::vector<Block> blocks_;  // of the series
  int64_t half_tile_ = -1;
  std::vector<double> coefficients_;
};

}  // namespace blockgtq::cuda
