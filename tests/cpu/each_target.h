// Runs a test's body on every SIMD target that this machine has.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
// clang-format off
#include "src/cpu/simd_targets.h"  // chooses the targets: before any Highway header
#include "hwy/highway.h"
// clang-format on

namespace blockgtq::cpu {

// Runs `body` once on each target this machine can run.
template <typename F>
void ForEachTarget(F body) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace blockgtq::cpu
