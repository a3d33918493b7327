// See plan_check.h.
#include "src/eval/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/eval/joint_options.h"
#include "src/eval/logit_comparison.h"

namespace blockgtq {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of logits held at a time, of each of the two runs

/// Runs a window as a sequence of its own, whose room is free again afterwards.
Status RunAlone(Context& context, std::span<const Token> tokens) {
  BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, context.cache().AddSequence());
  const SequenceTokens item{sequence, tokens};
  Status status = context.Run({&item, 1}, {.strict = true});
  context.cache().RemoveSequence(sequence);
  return status;
}

}  // namespace

PlanCheck::PlanCheck(LoadedModel& model, const PlanCheckOptions& options)
    : model_(model),
      options_(options),
      before_(model.backend().precision()),
      pool_(ThreadsOrCores(options.threads)) {
  model.backend().SetPrecision(Precision::kFloat);
}

PlanCheck::~PlanCheck() { model_.backend().SetPrecision(before_); }

Result<std::unique_ptr<PlanCheck>> PlanCheck::Create(LoadedModel& model, std::span<const Token> tokens,
                                                     const PlanCheckOptions& options) {
  if (tokens.empty() || options.window < 2 || options.window > model.config().context_length) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("checks of plans: {} tokens in windows of {}: at least 1 and 2, and windows "
                              "within the model's context of {}",
                              tokens.size(), options.window, model.config().context_length));
  }
  std::unique_ptr<PlanCheck> check(new PlanCheck(model, options));
  Backend& backend = model.backend();
  CacheOptions cache;
  cache.kind = backend.exact_cache_kind();
  cache.max_tokens = options.window + kPageTokens;
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> exact, Context::Create(model, cache, nullptr));
  const size_t size = static_cast<size_t>(options.window);
  for (size_t first = 0; first < tokens.size(); first += size) {
    BGTQ_RETURN_IF_ERROR(CheckJointStop(options.stop));
    const std::span<const Token> of = tokens.subspan(first, std::min(size, tokens.size() - first));
    Window& window = check->windows_.emplace_back();
    window.tokens.assign(of.begin(), of.end());
    BGTQ_RETURN_IF_ERROR(RunAlone(*exact, window.tokens));
    std::vector<int64_t> rows(of.size());
    std::iota(rows.begin(), rows.end(), 0);
    window.hidden = backend.MakeActivations(static_cast<int64_t>(of.size()), model.config().embedding);
    backend.GatherRows(exact->hidden(), rows, *window.hidden);
  }
  check->gathered_ = backend.MakeActivations(kLogitRows, model.config().embedding);
  check->logits_ = backend.MakeActivations(kLogitRows, model.config().vocabulary);
  return check;
}

Result<std::span<const float>> PlanCheck::ExactLogits(const Window& window, std::span<const int64_t> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  exact_logits_.resize(rows.size() * static_cast<size_t>(model_.config().vocabulary));
  model_.backend().GatherRows(*window.hidden, rows, *gathered_);
  model_.model().Logits(*gathered_, count, *logits_);
  BGTQ_RETURN_IF_ERROR(model_.backend().ReadRows(*logits_, count, exact_logits_.data()));
  return std::span<const float>(exact_logits_);
}

size_t PlanCheck::Pick(int64_t i, int64_t of) const {
  return static_cast<size_t>((2 * i + 1) * windows() / (2 * of));
}

int64_t PlanCheck::tokens(int64_t windows) const {
  int64_t sum = 0;
  for (int64_t i = 0; i < windows; ++i) sum += static_cast<int64_t>(windows_[Pick(i, windows)].tokens.size());
  return sum;
}

Result<double> PlanCheck::Kld(const std::shared_ptr<const SimulatedHeads>& heads, int64_t windows) {
  if (windows < 1 || windows > this->windows()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("checks of plans: {} windows of {}", windows, this->windows()));
  }
  double sum = 0;
  for (int64_t i = 0; i < windows; ++i) {
    BGTQ_RETURN_IF_ERROR(CheckJointStop(options_.stop));
    BGTQ_RETURN_IF_ERROR(Add(windows_[Pick(i, windows)], heads, sum));
  }
  const double mean = sum / static_cast<double>(tokens(windows));
  if (std::isfinite(mean)) return mean;
  return Status(ErrorCode::kNonFinite,
                "a plan's logits are NaN or infinite; the model file or its numerics are damaged");
}

/// Adds the divergences of all of the window's positions.
Status PlanCheck::Add(const Window& window, const std::shared_ptr<const SimulatedHeads>& heads, double& sum) {
  CacheOptions cache;
  cache.kind = CacheKind::kSimulated;
  cache.sinks = options_.protection.sinks;
  cache.recent = options_.protection.recent;
  cache.max_tokens = options_.window + kPageTokens;
  cache.simulated = heads;
  BGTQ_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(model_, cache, nullptr));
  BGTQ_RETURN_IF_ERROR(RunAlone(*context, window.tokens));
  const size_t vocabulary = static_cast<size_t>(model_.config().vocabulary);
  const int64_t rows = static_cast<int64_t>(window.tokens.size());
  for (int64_t first = 0; first < rows; first += kLogitRows) {
    std::vector<int64_t> some(static_cast<size_t>(std::min(kLogitRows, rows - first)));
    std::iota(some.begin(), some.end(), first);
    BGTQ_ASSIGN_OR_RETURN(const std::span<const float> exact, ExactLogits(window, some));
    BGTQ_ASSIGN_OR_RETURN(const std::span<const float> stored, context->Logits(some));
    std::vector<double> kld(some.size());
    pool_.Run(static_cast<int64_t>(some.size()), [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i) * vocabulary;
      const std::span<const float> base = exact.subspan(at, vocabulary);
      kld[static_cast<size_t>(i)] = Divergence(base, LogSum(base), stored.subspan(at, vocabulary));
    });
    for (const double k : kld) sum += k;
  }
  return Status::Ok();
}

}  // namespace blockgtq
