// How a plan came by its widths when a byte budget was spent over all heads (eval/joint_plan.h): kept in the
// plan's file for `inspect`. It decides nothing about stored bytes.
#pragma once

#include <cstdint>
#include <string>

#include "blockgtq/status.h"

namespace blockgtq {

struct PlanBudget {
  double bytes = 0;           // average stored bytes a token a head that were allowed; 0: target_kld decided
  double target_kld = 0;      // nats; 0: bytes decided
  int sinks = 0, recent = 0;  // exact tokens that the plan is meant for
  double probe_bits = 0;      // of the side that a probe stored as codes
  int64_t probe_tokens = 0, probes = 0;
  int64_t check_tokens = 0;        // that measured_kld is of; in older files as many as the probes'
  double probe_seconds = 0;        // of all probes and measured plans, without those taken up
  double exponent = 1, trust = 1;  // the error model
  double predicted_kld = 0;        // of the plan, nats: by the error model,
  double measured_kld = 0;         // and measured on text that probes did not run
  bool operator==(const PlanBudget&) const = default;
};

/// The JSON text of the metadata entry. Errors: kInvalidArgument when a number is not finite.
Result<std::string> PlanBudgetText(const PlanBudget& budget);

}  // namespace blockgtq
