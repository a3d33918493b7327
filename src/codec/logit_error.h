// What a head's key codes are predicted to cost under given statistics: the error law of docs/method.md.
#pragma once

#include "src/codec/plan.h"
#include "src/core/statistics.h"

namespace blockgtq {

/// Mean square of a logit's error (unscaled) that nearest rounding makes: over groups of n blocks at width b,
/// E(b) / (2 n) (sum_i Q_i / c_i^2) (sum_i c_i^2 K_i), where K_i is the energy of what is coded, about the
/// mean that the plan removes, and E(b) = 2 - 2 sqrt(1 - D(b)): D(b) with the norm corrected. The statistics,
/// of the same head dim, need not be those that the plan was made from.
double PredictedLogitError(const HeadPlan& plan, const HeadStatistics& statistics);

}  // namespace blockgtq
