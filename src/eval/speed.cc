// See speed.h.
#include "src/eval/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

namespace blockgtq {
namespace {

class Bench {
 public:
  Bench(Context& context, std::span<const Token> text, const SpeedOptions& options)
      : context_(context), text_(text), options_(options) {}

  Result<std::vector<SpeedRow>> Run() {
    BGTQ_ASSIGN_OR_RETURN(const SequenceId first, context_.cache().AddSequence());
    sequences_ = {first};
    Status status = Warm();
    for (size_t i = 0; i < options_.depths.size() && status.ok(); ++i) status = RunDepth(options_.depths[i]);
    RemoveAll();
    Forget();
    if (!status.ok()) return status;
    if (rows_.empty()) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("no test fits the model's context of {} tokens: use a smaller -d, -p or -n",
                                options_.context));
    }
    return std::move(rows_);
  }

 private:
  /// Faults the weights in, so that the first test does not pay for the disk.
  Status Warm() {
    BGTQ_RETURN_IF_ERROR(Append(std::max<int64_t>(1, std::min<int64_t>(options_.prompt, 64)), false));
    BGTQ_RETURN_IF_ERROR(Append(1, true));
    return context_.cache().Truncate(sequences_[0], 0);
  }

  /// Every sequence as it was at `depth`, for the next repetition.
  Status Rewind(int64_t depth) {
    KvCache& cache = context_.cache();
    if (!kept_.has_value()) {
      for (const SequenceId sequence : sequences_) BGTQ_RETURN_IF_ERROR(cache.Truncate(sequence, depth));
      return Status::Ok();
    }
    const size_t count = sequences_.size();
    RemoveAll();
    while (sequences_.size() < count) {
      BGTQ_ASSIGN_OR_RETURN(const SequenceId copy,
                            cache.ForkSequence(*kept_, depth, /*share=*/sequences_.empty()));
      sequences_.push_back(copy);
    }
    return Status::Ok();
  }

  void RemoveAll() {
    for (const SequenceId sequence : sequences_) context_.cache().RemoveSequence(sequence);
    sequences_.clear();
  }

  void Forget() {
    if (kept_.has_value()) context_.cache().RemoveSequence(*kept_);
    kept_.reset();
  }

  void KeepOne() {
    for (; sequences_.size() > 1; sequences_.pop_back()) context_.cache().RemoveSequence(sequences_.back());
  }

  bool Fits(const char* kind, int64_t tokens, int64_t depth) const {
    if (tokens > 0 && depth + tokens <= options_.context) return true;
    if (tokens > 0 && options_.progress) {
      options_.progress(fmt::format("{}{} @ d{} is left out: it ends past the model's context of {}", kind,
                                    tokens, depth, options_.context));
    }
    return false;
  }

  Status RunDepth(int64_t depth) {
    const bool prompt = Fits("pp", options_.prompt, depth), generate = Fits("tg", options_.generate, depth);
    if (!prompt && !generate) return Status::Ok();
    if (options_.progress) options_.progress(fmt::format("filling {} tokens", depth));
    int64_t have = context_.cache().state(sequences_[0]).length;
    const bool windows = context_.cache().has_windows();
    if (have > depth) {  // a cache with windows cannot go back so far: it begins anew
      have = windows ? 0 : depth;
      BGTQ_RETURN_IF_ERROR(context_.cache().Truncate(sequences_[0], have));
    }
    const int64_t run = options_.fill > 0 ? std::min(depth, options_.fill) : depth;
    if (have < run) BGTQ_RETURN_IF_ERROR(Append(run - have, false));
    if (const int64_t missing = depth - std::max(have, run); missing > 0) {
      if (missing % kPageTokens != 0) {
        return Status(ErrorCode::kInvalidArgument,
                      fmt::format("--fill {}: depth {} is not whole pages of {} tokens further",
                                  options_.fill, depth, kPageTokens));
      }
      BGTQ_RETURN_IF_ERROR(context_.cache().InsertCopies(sequences_[0], missing / kPageTokens));
    }
    if (windows) {
      BGTQ_ASSIGN_OR_RETURN(kept_, context_.cache().ForkSequence(sequences_[0], depth));
    }
    if (prompt) BGTQ_RETURN_IF_ERROR(Measure("pp", options_.prompt, depth, false));
    while (generate && static_cast<int64_t>(sequences_.size()) < options_.sequences) {
      BGTQ_ASSIGN_OR_RETURN(const SequenceId copy,
                            context_.cache().ForkSequence(sequences_[0], depth, /*share=*/false));
      sequences_.push_back(copy);
    }
    if (generate) BGTQ_RETURN_IF_ERROR(Measure("tg", options_.generate, depth, true));
    KeepOne();
    Forget();
    return Status::Ok();
  }

  Status Measure(const char* kind, int64_t tokens, int64_t depth, bool one_by_one) {
    SpeedRow row;
    row.test = fmt::format("{}{}", kind, tokens);
    row.depth = depth;
    row.tokens = tokens;
    row.sequences = static_cast<int64_t>(sequences_.size());
    // Not timed: what a device does once for a shape (plans of its libraries, captured graphs).
    BGTQ_RETURN_IF_ERROR(Append(one_by_one ? std::min<int64_t>(tokens, 3) : tokens, one_by_one));
    BGTQ_RETURN_IF_ERROR(Rewind(depth));
    std::vector<double> speeds;
    for (int r = 0; r < options_.repetitions; ++r) {
      if (options_.progress)
        options_.progress(fmt::format("{} @ d{} ({}/{})", row.test, depth, r + 1, options_.repetitions));
      const auto start = std::chrono::steady_clock::now();
      BGTQ_RETURN_IF_ERROR(Append(tokens, one_by_one));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      speeds.push_back(static_cast<double>(tokens * row.sequences) / seconds.count());
      row.kv_bytes = 0;
      row.device_bytes = context_.model().backend().device_bytes();
      for (const SequenceId sequence : sequences_) row.kv_bytes += context_.cache().SequenceBytes(sequence);
      BGTQ_RETURN_IF_ERROR(Rewind(depth));
    }
    double sum = 0, squares = 0;
    for (double s : speeds) sum += s;
    row.tokens_per_second = sum / static_cast<double>(speeds.size());
    for (double s : speeds) squares += (s - row.tokens_per_second) * (s - row.tokens_per_second);
    row.sd = speeds.size() > 1 ? std::sqrt(squares / static_cast<double>(speeds.size() - 1)) : 0;
    std::sort(speeds.begin(), speeds.end());
    row.median = speeds[speeds.size() / 2];
    rows_.push_back(row);
    return Status::Ok();
  }

  /// Runs `count` tokens of every sequence, and chooses the token that a user would wait for: after the last
  /// prompt token, or after every decoded one.
  Status Append(int64_t count, bool one_by_one) {
    const int64_t step = one_by_one ? 1 : std::min(count, context_.model().backend().prompt_batch());
    std::vector<Token> batch;
    std::vector<SequenceTokens> items(sequences_.size());
    std::vector<int64_t> last;
    for (int64_t done = 0; done < count;) {
      if (options_.stop != nullptr && options_.stop->load()) return Status(ErrorCode::kCancelled, "stopped");
      const int64_t rows = std::min(step, count - done);
      batch.clear();
      for (int64_t i = 0; i < rows; ++i) batch.push_back(text_[next_++ % text_.size()]);
      last.clear();
      for (size_t i = 0; i < items.size(); ++i) {
        items[i] = {sequences_[i], batch};
        last.push_back((static_cast<int64_t>(i) + 1) * rows - 1);
      }
      BGTQ_RETURN_IF_ERROR(context_.Run(items));
      done += rows;
      if (one_by_one || done == count) BGTQ_RETURN_IF_ERROR(context_.GreedyTokens(last).status());
    }
    return Status::Ok();
  }

  Context& context_;
  std::span<const Token> text_;
  const SpeedOptions& options_;
  std::vector<SequenceId> sequences_;  // more than one only while they decode together
  std::optional<SequenceId> kept_;     // the first at the present depth, where sequences cannot be cut
  size_t next_ = 0;
  std::vector<SpeedRow> rows_;
};

}  // namespace

Result<std::vector<SpeedRow>> MeasureSpeed(Context& context, std::span<const Token> text,
                                           const SpeedOptions& options) {
  if (text.empty()) return Status(ErrorCode::kInvalidArgument, "bench: no tokens to run");
  return Bench(context, text, options).Run();
}

}  // namespace blockgtq
