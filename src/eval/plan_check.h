// How far whole plans move a model's predictions on windows of a text, for a few plans. Unlike KldProbe it
// keeps the exact run's last hidden rows and not its logits, which are gigabytes where a vocabulary is large.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/codec/simulated.h"
#include "src/core/thread_pool.h"
#include "src/engine/context.h"
#include "src/eval/tested_cache.h"

namespace blockgtq {

struct PlanCheckOptions {
  int64_t window = 512;  // tokens of a sequence
  Protection protection{4, 64};
  int threads = 0;                          // that compare logits; 0: one a core
  const std::atomic<bool>* stop = nullptr;  // looked at before every window
};

/// Keeps the backend at Precision::kFloat while it lives.
class PlanCheck {
 public:
  /// tokens: windows back to back; a last one may be shorter. Errors: kInvalidArgument (no tokens, a window
  /// that is out of range or past the model's context), kUnsupported (a backend without simulated caches),
  /// kCancelled (stop); those of Context::Create and Run.
  static Result<std::unique_ptr<PlanCheck>> Create(LoadedModel& model, std::span<const Token> tokens,
                                                   const PlanCheckOptions& options);
  ~PlanCheck();

  /// Mean KL divergence from the exact logits to those with these heads, nats, over every position of
  /// `windows` of the windows, evenly spread. Errors: kInvalidArgument (none, or more than there are);
  /// kCancelled; kNonFinite; those of Context::Create and Run.
  Result<double> Kld(const std::shared_ptr<const SimulatedHeads>& heads, int64_t windows);
  Result<double> Kld(const std::shared_ptr<const SimulatedHeads>& heads) { return Kld(heads, windows()); }
  int64_t windows() const { return static_cast<int64_t>(windows_.size()); }
  /// Tokens that Kld compares.
  int64_t tokens(int64_t windows) const;

 private:
  struct Window {
    std::vector<Token> tokens;
    std::unique_ptr<Activations> hidden;  // of the exact run, [tokens, embedding]
  };
  PlanCheck(LoadedModel& model, const PlanCheckOptions& options);
  Result<std::span<const float>> ExactLogits(const Window& window, std::span<const int64_t> rows);
  size_t Pick(int64_t i, int64_t of) const;  // the i-th of `of` windows that are evenly spread
  Status Add(const Window& window, const std::shared_ptr<const SimulatedHeads>& heads, double& sum);

  LoadedModel& model_;
  PlanCheckOptions options_;
  Precision before_;
  std::vector<Window> windows_;
  std::unique_ptr<Activations> gathered_, logits_;  // of ExactLogits, [kLogitRows, ...]
  std::vector<float> exact_logits_;
  ThreadPool pool_;
};

}  // namespace blockgtq
