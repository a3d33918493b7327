// See generator.h.
#include "src/engine/generator.h"

namespace blockgtq {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

bool RunningText::Stopped() const {
  return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed);
}

void RunningText::End(StopReason reason) {
  running_ = false;
  result_.reason = reason;
  result_.decode_ms = MillisecondsSince(decode_start_);
}

void RunningText::Take(Context& context, Token token) {
  if (!options_.ignore_end && context.model().tokenizer().IsEndOfGeneration(token)) {
    return End(StopReason::kEnd);
  }
  result_.tokens.push_back(token);
  history_.push_back(token);
  if (options_.on_piece) options_.on_piece(context.model().tokenizer().Piece(token));
  if (static_cast<int64_t>(result_.tokens.size()) >= options_.max_new_tokens) return End(StopReason::kLimit);
  const int64_t length = context.cache().state(sequence_).length;
  if ((options_.context_tokens > 0 && length >= options_.context_tokens) ||
      !context.cache().Reserve(sequence_, 1).ok()) {  // no room for one more
    End(StopReason::kContextFull);
  }
}

/// Draws the next token of each from its row of the last pass: greedy ones together, which spares their
/// logits the way to the host.
Status RunningText::Draw(Context& context, std::span<RunningText* const> all, std::span<const int64_t> rows) {
  std::vector<RunningText*> greedy, sampled;
  std::vector<int64_t> greedy_rows, sampled_rows;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_greedy = all[i]->options_.sampler.greedy();
    if (all[i]->Stopped()) {
      all[i]->End(StopReason::kCancelled);
    } else if (all[i]->options_.max_new_tokens <= 0) {
      all[i]->End(StopReason::kLimit);
    } else {
      (is_greedy ? greedy : sampled).push_back(all[i]);
      (is_greedy ? greedy_rows : sampled_rows).push_back(rows[i]);
    }
  }
  if (!greedy.empty()) {
    BGTQ_ASSIGN_OR_RETURN(const std::span<const Token> chosen, context.GreedyTokens(greedy_rows));
    for (size_t i = 0; i < greedy.size(); ++i) greedy[i]->Take(context, chosen[i]);
  }
  if (!sampled.empty()) {
    BGTQ_ASSIGN_OR_RETURN(const std::span<const float> logits, context.Logits(sampled_rows));
    const size_t vocabulary = logits.size() / sampled.size();
    for (size_t i = 0; i < sampled.size(); ++i) {
      RunningText& g = *sampled[i];
      BGTQ_ASSIGN_OR_RETURN(const Token token,
                            g.sampler_.Sample(logits.subspan(i * vocabulary, vocabulary), g.history_));
      g.Take(context, token);
    }
  }
  return Status::Ok();
}

Status GenerateBegin(Context& context, RunningText& g, std::span<const Token> prompt) {
  if (prompt.empty())
    return Status(ErrorCode::kInvalidArgument, "the prompt is empty: there is nothing to continue");
  BGTQ_RETURN_IF_ERROR(g.options_.sampler.Validate());
  const Clock::time_point prompt_start = Clock::now();
  int64_t last_row = 0;
  const Status status = context.Append(
      g.sequence_, prompt, {.strict = g.options_.strict},
      [&](int64_t first, int64_t rows) {
        g.result_.prompt_tokens = first + rows;
        last_row = rows - 1;
        if (g.options_.on_prompt) g.options_.on_prompt(g.result_.prompt_tokens);
        return g.Stopped() ? Status(ErrorCode::kCancelled, "stopped") : Status::Ok();
      },
      g.options_.batch);
  g.history_.insert(g.history_.end(), prompt.begin(), prompt.begin() + g.result_.prompt_tokens);
  g.result_.prompt_ms = MillisecondsSince(prompt_start);
  g.decode_start_ = Clock::now();
  if (status.code() == ErrorCode::kCancelled) {
    g.End(StopReason::kCancelled);
    return Status::Ok();
  }
  BGTQ_RETURN_IF_ERROR(status);
  g.running_ = true;
  RunningText* const one = &g;
  return RunningText::Draw(context, {&one, 1}, {&last_row, 1});
}

Status GenerateStep(Context& context, std::span<RunningText* const> all) {
  std::vector<SequenceTokens> items;
  std::vector<int64_t> rows;
  for (RunningText* g : all) {
    rows.push_back(static_cast<int64_t>(items.size()));
    items.push_back({g->sequence_, {&g->history_.back(), 1}});
  }
  BGTQ_RETURN_IF_ERROR(context.Run(items));
  for (RunningText* g : all) ++g->result_.decoded;
  return RunningText::Draw(context, all, rows);
}

Result<GenerateResult> Generate(Context& context, SequenceId sequence, std::vector<Token>& history,
                                std::span<const Token> prompt, const GenerateOptions& options) {
  RunningText generation(sequence, history, options);
  RunningText* const one = &generation;
  Status status = GenerateBegin(context, generation, prompt);
  while (status.ok() && generation.running()) status = GenerateStep(context, {&one, 1});
  if (!status.ok()) return status;
  return generation.result();
}

Status StorePending(Context& context, SequenceId sequence, std::vector<Token>& history) {
  const size_t stored = static_cast<size_t>(context.cache().state(sequence).length);
  Status status = context.Append(sequence, std::span<const Token>(history).subspan(stored), {}, {});
  if (status.code() != ErrorCode::kOutOfMemory) return status;
  history.resize(static_cast<size_t>(context.cache().state(sequence).length));
  return Status::Ok();
}

}  // namespace blockgtq
