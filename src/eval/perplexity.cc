// See perplexity.h.
#include "src/eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/thread_pool.h"
#include "src/eval/logit_comparison.h"

namespace blockgtq {
namespace {

constexpr int64_t kLogitRows = 64;  // rows of logits held at a time, of each context

struct Scores {
  std::vector<double> nll, base_nll, kld, overlap;
  std::vector<bool> same_top1;
  /// Keeps the first `positions`.
  void Shorten(size_t positions) {
    nll.resize(positions);
    for (std::vector<double>* of_base : {&base_nll, &kld, &overlap})
      of_base->resize(std::min(of_base->size(), positions));
    same_top1.resize(std::min(same_top1.size(), positions));
  }
};

double Mean(std::span<const double> x) {
  return x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

/// Standard error of the mean.
double StandardError(std::span<const double> x) {
  if (x.size() < 2) return 0;
  const double mean = Mean(x);
  double sum = 0;
  for (double v : x) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(x.size() - 1) / static_cast<double>(x.size()));
}

/// q-th quantile by linear interpolation.
double Quantile(std::vector<double> x, double q) {
  if (x.empty()) return 0;
  std::sort(x.begin(), x.end());
  const double at = q * static_cast<double>(x.size() - 1);
  const size_t low = static_cast<size_t>(at), high = std::min(low + 1, x.size() - 1);
  return x[low] + (at - static_cast<double>(low)) * (x[high] - x[low]);
}

/// Scores positions [first, last) of a window, whose hidden rows start at `batch_first`.
Status ScoreRows(Context& test, Context* base, std::span<const Token> window, int64_t batch_first,
                 int64_t first, int64_t last, ThreadPool& pool, Scores& scores) {
  const size_t vocabulary = static_cast<size_t>(test.model().config().vocabulary);
  for (int64_t begin = first; begin < last; begin += kLogitRows) {
    const int64_t count = std::min(kLogitRows, last - begin);
    std::vector<int64_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), begin - batch_first);
    BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits, test.Logits(rows));
    std::span<const float> base_logits;
    if (base != nullptr) {
      BGTQ_ASSIGN_OR_RETURN(base_logits, base->Logits(rows));
    }
    const size_t offset = scores.nll.size();
    std::vector<LogitComparison> comparisons(static_cast<size_t>(count));
    scores.nll.resize(offset + static_cast<size_t>(count));
    if (base != nullptr) scores.base_nll.resize(scores.nll.size());
    pool.Run(count, [&](int64_t i, int) {
      const size_t at = static_cast<size_t>(i);
      const std::span<const float> row = logits.subspan(at * vocabulary, vocabulary);
      const Token next = window[static_cast<size_t>(begin + i + 1)];
      scores.nll[offset + at] = NegativeLogLikelihood(row, next);
      if (base == nullptr) return;
      const std::span<const float> base_row = base_logits.subspan(at * vocabulary, vocabulary);
      scores.base_nll[offset + at] = NegativeLogLikelihood(base_row, next);
      comparisons[at] = CompareLogits(base_row, row);
    });
    if (base == nullptr) continue;
    for (const LogitComparison& c : comparisons) {
      scores.kld.push_back(c.kld);
      scores.overlap.push_back(c.top10_overlap);
      scores.same_top1.push_back(c.same_top1);
    }
  }
  return Status::Ok();
}

Status ScoreWindow(Context& test, Context* base, std::span<const Token> window,
                   const PerplexityOptions& options, ThreadPool& pool, Scores& scores) {
  // Position i predicts token i + 1; the last position predicts nothing that is known.
  const int64_t first = options.score_all ? 0 : options.window / 2, last = options.window - 1;
  BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, test.cache().AddSequence());
  SequenceId base_sequence = 0;
  if (base != nullptr) {
    BGTQ_ASSIGN_OR_RETURN(base_sequence, base->cache().AddSequence());
  }
  Status status;
  for (int64_t begin = 0; begin < options.window && status.ok(); begin += Context::kScoringBatch) {
    if (options.stop != nullptr && options.stop->load()) {
      status = Status(ErrorCode::kCancelled, "stopped before the first window was done");
      break;
    }
    const int64_t count = std::min(Context::kScoringBatch, options.window - begin);
    const std::span<const Token> tokens =
        window.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    const SequenceTokens item{sequence, tokens}, base_item{base_sequence, tokens};
    status = test.Run({&item, 1}, {.strict = options.strict});
    if (status.ok() && base != nullptr) status = base->Run({&base_item, 1}, {.strict = options.strict});
    const int64_t score_first = std::max(first, begin), score_last = std::min(last, begin + count);
    if (status.ok() && score_first < score_last) {
      status = ScoreRows(test, base, window, begin, score_first, score_last, pool, scores);
    }
  }
  test.cache().RemoveSequence(sequence);
  if (base != nullptr) base->cache().RemoveSequence(base_sequence);
  return status;
}

}  // namespace

Result<PerplexityResult> Perplexity(Context& test, Context* base, std::span<const Token> tokens,
                                    const PerplexityOptions& options) {
  const int64_t context_length = test.model().config().context_length;
  if (options.window < 4 || options.window > context_length) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("-c {}: a window must be 4..{} tokens, the model's context", options.window,
                              context_length));
  }
  const int64_t whole = static_cast<int64_t>(tokens.size()) / options.window;
  const int64_t windows = options.chunks > 0 ? options.chunks : whole;
  if (whole == 0 || windows > whole) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "the text has {} tokens, {} windows of {}; {} asked for: use a longer text, a smaller -c or "
            "fewer --chunks",
            tokens.size(), whole, options.window, std::max<int64_t>(windows, 1)));
  }
  ThreadPool pool(ThreadsOrCores(options.threads));
  Scores scores;
  std::vector<Token> window;
  PerplexityResult result;
  for (int64_t w = 0; w < windows; ++w) {
    const size_t before = scores.nll.size();
    window.assign(tokens.begin() + w * options.window, tokens.begin() + (w + 1) * options.window);
    if (options.bos >= 0) window[0] = options.bos;
    const Status status = ScoreWindow(test, base, window, options, pool, scores);
    if (status.code() == ErrorCode::kCancelled && w > 0) {  // the whole windows count, the cut one does not
      scores.Shorten(before);
      result.stopped = true;
      break;
    }
    BGTQ_RETURN_IF_ERROR(status);
    for (size_t at = before; at < scores.nll.size(); ++at) {
      if (!std::isfinite(scores.nll[at])) {
        return Status(
            ErrorCode::kNonFinite,
            fmt::format("window {}: a logit is NaN or infinite; the model file or its numerics are damaged",
                        w + 1));
      }
    }
    result.window_ppl.push_back(std::exp(Mean(std::span<const double>(scores.nll).subspan(before))));
    ++result.windows;
    if (options.progress) options.progress(w + 1, windows, std::exp(Mean(scores.nll)), Mean(scores.kld));
  }
  result.tokens = static_cast<int64_t>(scores.nll.size());
  result.ppl = std::exp(Mean(scores.nll));
  result.ppl_se = result.ppl * StandardError(scores.nll);
  if (base != nullptr) {
    result.base_ppl = std::exp(Mean(scores.base_nll));
    result.kld_mean = Mean(scores.kld);
    result.kld_se = StandardError(scores.kld);
    result.kld_median = Quantile(scores.kld, 0.5);
    result.kld_p99 = Quantile(scores.kld, 0.99);
    result.top1 = static_cast<double>(std::count(scores.same_top1.begin(), scores.same_top1.end(), true)) /
                  static_cast<double>(result.tokens);
    result.top10_overlap = Mean(scores.overlap);
  }
  return result;
}

}  // namespace blockgtq
