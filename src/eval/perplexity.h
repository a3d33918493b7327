// Perplexity over windows of a text, and how far a cache moves the model's predictions from an fp16 cache's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/engine/context.h"

namespace blockgtq {

struct PerplexityOptions {
  int64_t window = 512;    // tokens; windows do not overlap
  int64_t chunks = 0;      // windows scored; 0: as many whole windows as the text has
  Token bos = -1;          // >= 0: takes the place of each window's first token (models that want one)
  bool score_all = false;  // every position; otherwise the second half of each window, as llama.cpp does
  bool strict = false;     // RunOptions::strict
  /// After each window: windows done, windows in all, perplexity so far, mean KLD so far (0 without a base).
  std::function<void(int64_t done, int64_t total, double ppl, double kld)> progress;
  const std::atomic<bool>* stop = nullptr;
  int threads = 0;  // that compare logits; 0: one a core
};

struct PerplexityResult {
  double ppl = 0, ppl_se = 0;
  double base_ppl = 0;  // of the fp16 cache, same run
  // Against the base's logits, over the same positions. KLD(base || test) in nats.
  double kld_mean = 0, kld_se = 0, kld_median = 0, kld_p99 = 0;
  double top1 = 0;           // share of positions whose likeliest token is the base's
  double top10_overlap = 0;  // mean share of the ten likeliest tokens in common
  int64_t tokens = 0;        // positions scored
  int64_t windows = 0;
  bool stopped = false;            // by options.stop, before all windows were done
  std::vector<double> window_ppl;  // of each window alone
};

/// base: a context with an fp16 cache of the same model, or nullptr for perplexity alone. Both contexts need
/// room for a window. Errors: kInvalidArgument when the text has no whole window or the window does not fit
/// the model's context; kCancelled when stopped before the first window is done; kNonFinite; those of
/// Context::Run.
Result<PerplexityResult> Perplexity(Context& test, Context* base, std::span<const Token> tokens,
                                    const PerplexityOptions& options);

}  // namespace blockgtq
