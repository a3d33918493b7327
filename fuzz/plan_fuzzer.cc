// Plan loading: any bytes give a valid plan or one Status.
#include <cstdint>
#include <cstdlib>

#include "src/formats/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto budget = blockgtq::ParsePlanBudget(bytes, "fuzz");
  if (!budget.ok() && budget.status().message().find('\n') != std::string::npos) std::abort();
  if (budget.ok() && budget->has_value() && !blockgtq::PlanBudgetText(**budget).ok()) std::abort();
  const auto plan = blockgtq::ParsePlan(bytes, "fuzz");
  if (!plan.ok()) {
    if (plan.status().message().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  if (!plan->Validate().ok() || plan->Hash().size() != 16) std::abort();
  return 0;
}
