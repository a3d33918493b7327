// See error_model_search.h.
#include "src/eval/error_model_search.h"

#include <algorithm>
#include <array>
#include <span>

namespace blockgtq {
namespace {

// Each beside the best so far.
constexpr std::array<double, 1> kTrustSteps = {0.6};
constexpr std::array<double, 2> kExponentSteps = {0.8, 1.25};
constexpr double kLeastStep = 0.3, kMostStep = 4;  // that a parameter goes to

}  // namespace

Result<ErrorModel> ChooseErrorModel(const std::function<Result<double>(const ErrorModel&)>& measure) {
  ErrorModel best;
  BGTQ_ASSIGN_OR_RETURN(double reached, measure(best));
  double least = reached;  // of any model while one parameter changes
  // Takes steps of one parameter as long as they measure at most `share` of the least.
  const auto improve = [&](std::span<const double> steps, double ErrorModel::*field, double share) -> Status {
    least = reached;
    for (const double step : steps) {
      bool taken = false;
      for (bool more = true; more;) {
        ErrorModel model = best;
        model.*field *= step;
        if (model.*field > kMostStep || model.*field < kLeastStep) break;
        BGTQ_ASSIGN_OR_RETURN(const double kld, measure(model));
        more = kld <= share * least;
        least = std::min(least, kld);
        if (!more) break;
        taken = true;
        best = model;
        reached = kld;
      }
      if (taken) break;  // the other way leads back
    }
    return Status::Ok();
  };
  BGTQ_RETURN_IF_ERROR(improve(kTrustSteps, &ErrorModel::trust, 1 + kChanceShare));
  BGTQ_RETURN_IF_ERROR(improve(kExponentSteps, &ErrorModel::exponent, 1 - kChanceShare));
  return best;
}

}  // namespace blockgtq
