// What a calibration with a budget is asked for (joint_plan.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "blockgtq/status.h"
#include "src/codec/recipe.h"
#include "src/eval/tested_cache.h"

namespace blockgtq {

/// How near, relatively, a plan's divergence shall come to target_kld: the search ends there.
inline constexpr double kTargetTolerance = 0.03;

struct JointOptions {
  // One of the two:
  double bytes = 0;       // average stored a token a head, K + V, at most
  double target_kld = 0;  // nats: mean divergence from the fp16 cache that is reached in as few bytes

  Protection protection{4, 64};          // that the plan is to be used with: what the probes run with
  uint64_t seed = RecipeOptions().seed;  // of the rotations; without sinks each head's is one of the 16 from
                                         // here on (first_keys.h)
  int64_t tokens = 2048;                 // of the text, that statistics are measured on
  int64_t probe_tokens = 256;            // after them, that probes run
  int64_t probe_positions = 128;         // of the probes' tokens, whose predictions are compared
  int64_t check_tokens = 2048;           // of the rest, spread over it, that whole plans are measured on
  int threads = 0;                       // that compare and choose; 0: one a core
  double probe_bits = 2;  // 1, 2, 3, 4, 5 or 8: what a probe stores its one side of one head with
  std::function<void(double done, const std::string& note)> progress;  // done 0..1; may be empty
  const std::atomic<bool>* stop = nullptr;
};

/// kCancelled once `stop` says so; it may be null.
inline Status CheckJointStop(const std::atomic<bool>* stop) {
  if (stop == nullptr || !stop->load()) return Status::Ok();
  return {ErrorCode::kCancelled, "stopped; the probes so far are kept, the same command takes up there"};
}

}  // namespace blockgtq
