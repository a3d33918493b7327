// Key means as the decode kernels want them. Host code, part of head_table.h.
#pragma once

#include <cstdint>
#include <vector>

#include "src/codec/plan.h"
#include "src/core/rope.h"
#include "src/cuda/mean_layout.h"

namespace blockgtq::cuda {

/// A head's mean units by the way in which they are added (mean_layout.h).
struct MeanUnits {
  int series_first = 0,
      series_units = 0;  // a range; direct units in it and those without a mean count as zero
  std::vector<int> direct;
};
/// Decided by the frequencies that the model really has: the series takes every unit whose degrees it offers,
/// exact to 5e-5 of the unit's largest term.
MeanUnits SplitMeanUnits(const HeadPlan& plan, const RopeConfig& rope);

/// out: MeanConstants::Bytes(head_dim, direct units of the model) zero bytes, 4-byte aligned.
void FillMeanConstants(const HeadPlan& plan, const RopeConfig& rope, const MeanUnits& units, uint8_t* out);

}  // namespace blockgtq::cuda
