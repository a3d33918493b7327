// Which error model splits a budget best (joint_allocation.h): found by measuring the plans of a few.
#pragma once

#include <functional>

#include "blockgtq/status.h"
#include "src/eval/joint_allocation.h"

namespace blockgtq {

/// Share by which divergences of two plans on a thousand tokens differ by chance: what one text says of two
/// error models turns by so much on the next.
inline constexpr double kChanceShare = 0.04;

/// From the plain model, a step of one parameter at a time. Trust goes down as long as that costs no more
/// than chance: what probes say of one text holds less for others. The exponent changes where that gains more
/// than chance.
///
/// measure: the divergence of a model's plan, nats. Errors: those of measure.
Result<ErrorModel> ChooseErrorModel(const std::function<Result<double>(const ErrorModel&)>& measure);

}  // namespace blockgtq
