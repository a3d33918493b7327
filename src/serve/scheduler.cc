// The passes of scheduler.h: who runs, what runs together, and what comes of it. Slots and counters are in
// scheduler_slots.cc.
#include "src/serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace blockgtq::serve {
namespace {

// A prompt leaves at most about this many entries in the prefix cache, evenly spread, beside
// its early cuts and its last.
constexpr int64_t kEntriesPerPrompt = 16;

Status Invalid(std::string message) { return Status(ErrorCode::kInvalidArgument, std::move(message)); }

}  // namespace

Result<std::unique_ptr<Scheduler>> Scheduler::Create(Context& context, const SchedulerOptions& options) {
  if (options.max_running < 1) return Invalid("the scheduler needs at least 1 request at a time");
  if (options.chunk < kPageTokens || options.chunk % kPageTokens != 0) {
    return Invalid(
        fmt::format("prompt chunk of {} tokens: must be a multiple of {}", options.chunk, kPageTokens));
  }
  const int64_t model = context.model().config().context_length;
  const int64_t wanted = options.max_sequence > 0 ? options.max_sequence : model;
  if (wanted > model) return Invalid(fmt::format("a context of {} tokens: the model's is {}", wanted, model));
  return std::unique_ptr<Scheduler>(
      new Scheduler(context, options, std::min(wanted, context.cache().options().max_tokens)));
}

Scheduler::Scheduler(Context& context, const SchedulerOptions& options, int64_t sequence_limit)
    : context_(context),
      cache_(context.cache()),
      options_(options),
      sequence_limit_(sequence_limit),
      cuts_(options.chunk),
      prefixes_(cache_, cuts_, options.prefix_entries),
      slots_(static_cast<size_t>(options.max_running)) {}

Scheduler::~Scheduler() {
  for (Streams* streams : {&running_, &waiting_}) {
    while (!streams->empty()) End(*streams->back(), FinishReason::kCancelled);
  }
  for (Slot& slot : slots_) ReleaseSlot(slot);
}

Status Scheduler::WarmUp() {
  if (!context_.model().backend().loads_late()) return Status::Ok();
  constexpr int64_t kWarmUpTokens = 4096;
  const int64_t prompt = std::min(kWarmUpTokens, sequence_limit_ - 1);
  if (prompt < 1) return Status::Ok();
  const std::vector<Token> tokens(static_cast<size_t>(prompt), 0);
  BGTQ_ASSIGN_OR_RETURN(const SequenceId sequence, cache_.AddSequence());
  const auto run = [&]() -> Status {
    const auto pass = [&](int64_t first, int64_t count) -> Status {
      const SequenceTokens item{
          sequence, std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count))};
      BGTQ_RETURN_IF_ERROR(context_.Run({&item, 1}));
      const int64_t last = count - 1;
      return context_.GreedyTokens({&last, 1}).status();
    };
    for (int64_t at = 0; at < prompt;) {
      const int64_t end = std::min(cuts_.NextEnd(at), prompt);
      BGTQ_RETURN_IF_ERROR(pass(at, end - at));
      at = end;
    }
    return pass(0, 1);
  };
  const Status status = run();
  cache_.RemoveSequence(sequence);
  return status;
}

Status Scheduler::Check(const Request& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return Invalid("the prompt is empty: there is nothing to continue");
  if (prompt >= sequence_limit_) {
    return Invalid(fmt::format("the prompt has {} tokens; prompt and answer may have {} together", prompt,
                               sequence_limit_));
  }
  const int64_t vocabulary = context_.model().config().vocabulary;
  for (const Token token : request.prompt) {
    if (token < 0 || token >= vocabulary)
      return Invalid(fmt::format("token {} is not in the model's vocabulary of {}", token, vocabulary));
  }
  if (request.max_new_tokens < 1)
    return Invalid(fmt::format("{} new tokens: must be at least 1", request.max_new_tokens));
  if (request.top_logprobs > options_.max_top_logprobs) {
    return Invalid(
        fmt::format("{} logprobs a token: at most {}", request.top_logprobs, options_.max_top_logprobs));
  }
  if (static_cast<int64_t>(request.stop.size()) > options_.max_stop_strings)
    return Invalid(
        fmt::format("{} stop strings: at most {}", request.stop.size(), options_.max_stop_strings));
  if (std::ranges::any_of(request.stop, &std::string::empty)) return Invalid("a stop string is empty");
  if (request.slot >= 0) BGTQ_RETURN_IF_ERROR(CheckSlot(request.slot));
  return request.sampler.Validate();
}

void Scheduler::Submit(RequestId id, Request request, EventSink sink) {
  ++counters_.requests;
  auto json = request.json_object ? json_vocabulary() : nullptr;
  waiting_.push_back(
      std::make_unique<Stream>(id, std::move(request), std::move(sink), cuts_, std::move(json)));
}

std::shared_ptr<const JsonVocabulary> Scheduler::json_vocabulary() {
  if (json_vocabulary_ == nullptr)
    json_vocabulary_ = std::make_shared<const JsonVocabulary>(context_.model().tokenizer());
  return json_vocabulary_;
}

void Scheduler::Cancel(RequestId id) {
  for (Streams* streams : {&running_, &waiting_}) {
    for (const auto& stream : *streams) {
      if (stream->id == id) return End(*stream, FinishReason::kCancelled);
    }
  }
}

bool Scheduler::Step() {
  Admit();
  MakeRoomForDecoding();
  ChooseBatch();
  if (batch_.empty()) return false;
  RunBatch();
  DrawTokens();
  return true;
}

void Scheduler::Admit() {
  for (size_t i = 0; i < waiting_.size() && static_cast<int>(running_.size()) < options_.max_running;) {
    Stream& stream = *waiting_[i];
    if (!Ready(stream)) {
      ++i;
      continue;
    }
    Status begun = Begin(stream);
    if (begun.ok()) {
      Move(stream, waiting_, running_);
    } else if (begun.code() == ErrorCode::kOutOfMemory && (!running_.empty() || Saving())) {
      break;  // it is next; those behind it do not overtake, or a long prompt would wait for ever
    } else {
      End(stream, FinishReason::kFailed, std::move(begun));
    }
  }
}

void Scheduler::Move(const Stream& stream, Streams& from, Streams& to) {
  std::unique_ptr<Stream> moved = Remove(from, stream);
  const auto place = std::ranges::find_if(to, [&](const auto& s) { return s->id > moved->id; });
  to.insert(place, std::move(moved));
}

std::unique_ptr<Stream> Scheduler::Remove(Streams& streams, const Stream& stream) {
  const auto place = std::ranges::find_if(streams, [&](const auto& s) { return s.get() == &stream; });
  if (place == streams.end()) return nullptr;
  std::unique_ptr<Stream> removed = std::move(*place);
  streams.erase(place);
  return removed;
}

bool Scheduler::Ready(const Stream& stream) const {
  if (stream.request.slot >= 0 && SlotBusy(stream.request.slot)) return false;
  if (!stream.request.use_prefix_cache || options_.prefix_entries == 0) return true;
  // Where a running prompt is about to leave a longer common beginning than there is now, it is waited for.
  const int64_t most = stream.prompt_length() - 1, usable = cuts_.Last(most);
  const int64_t found = cuts_.Last(prefixes_.Find(stream.request.prompt, stream.keys, most));
  for (const auto& other : running_) {
    if (!other->in_prompt()) continue;
    const auto differ = std::ranges::mismatch(stream.keys, other->keys);
    const int64_t common = std::min<int64_t>(differ.in1 - stream.keys.begin(), usable);
    for (int64_t cut = common; cut > std::max(found, cuts_.Last(other->stored)); --cut) {
      if (KeepsPrefix(*other, cut)) return false;
    }
  }
  return true;
}

bool Scheduler::KeepsPrefix(const Stream& stream, int64_t cut) const {
  const int64_t cuts = static_cast<int64_t>(stream.keys.size());
  if (!stream.canonical || !stream.request.use_prefix_cache || cut < 1 || cut > cuts) return false;
  int64_t stride = 1;
  while ((cuts - cuts_.early()) / stride > kEntriesPerPrompt) stride *= 2;
  return cut <= cuts_.early() || (cut - cuts_.early()) % stride == 0 || cut == cuts ||
         cut == cuts_.Last(stream.prompt_length() - 1);
}

Status Scheduler::Begin(Stream& stream) {
  Status status = TakeBeginning(stream);
  while (status.code() == ErrorCode::kOutOfMemory && GiveWay()) status = TakeBeginning(stream);
  BGTQ_RETURN_IF_ERROR(status);
  // A page for each of the others, so that the newcomer is not preempted at once.
  const int64_t spare = kPageTokens * static_cast<int64_t>(running_.size());
  do {
    status = cache_.Reserve(*stream.sequence, stream.length() + 1 - stream.stored);
    if (status.ok() && cache_.free_tokens() < spare)
      status = Status(ErrorCode::kOutOfMemory, "KV cache: no page to spare");
  } while (status.code() == ErrorCode::kOutOfMemory && GiveWay());
  if (!status.ok()) {
    ReturnBeginning(stream);
    return status;
  }
  stream.NoteFirstRun(stream.stored);
  counters_.cached_tokens += stream.stored;
  return status;
}

Status Scheduler::TakeBeginning(Stream& stream) {
  const int64_t most = stream.prompt_length() - 1;  // one token at least is run, for its logits
  const int64_t cached =
      stream.request.use_prefix_cache ? prefixes_.Find(stream.request.prompt, stream.keys, most) : 0;
  if (TakeSlot(stream, cached)) return Status::Ok();
  stream.canonical = true;
  if (cached > 0) {
    BGTQ_ASSIGN_OR_RETURN(stream.sequence, prefixes_.Fork(stream.keys, cached));
  } else {
    BGTQ_ASSIGN_OR_RETURN(stream.sequence, cache_.AddSequence());
  }
  stream.stored = cached;
  return Status::Ok();
}

void Scheduler::MakeRoomForDecoding() {
  // The oldest first; whoever is preempted is the last, so the loop meets no one twice.
  for (size_t i = 0; i < running_.size(); ++i) {
    Stream& stream = *running_[i];
    if (stream.in_prompt()) continue;
    while (!cache_.Reserve(*stream.sequence, 1).ok()) {
      if (GiveWay()) continue;
      Stream& youngest = *running_.back();
      if (running_.size() == 1 && !Saving()) {
        End(stream, FinishReason::kContextFull);
        break;
      }
      const bool itself = &youngest == &stream;
      Preempt(youngest);
      if (itself) break;
    }
  }
}

void Scheduler::ChooseBatch() {
  batch_.clear();
  items_.clear();
  const auto alone = std::ranges::find_if(running_, [](const auto& s) { return s->stored < s->alone_until; });
  if (alone != running_.end()) return AddToBatch(**alone);
  std::vector<Stream*> prompts;
  for (const auto& stream : running_) {
    if (stream->in_prompt()) {
      prompts.push_back(stream.get());
    } else {
      AddToBatch(*stream);
    }
  }
  // Prompts take turns: the one whose last turn is longest ago, and others while they fit in the same chunk.
  std::ranges::stable_sort(prompts, {}, &Stream::last_prompt_step);
  int64_t room = options_.chunk;
  for (Stream* stream : prompts) {
    const int64_t rows = static_cast<int64_t>(stream->NextTokens(cuts_).size());
    if (rows > room) continue;
    room -= rows;
    stream->last_prompt_step = ++turn_;
    AddToBatch(*stream);
  }
}

void Scheduler::AddToBatch(Stream& stream) {
  batch_.push_back(&stream);
  items_.push_back({*stream.sequence, stream.NextTokens(cuts_)});
}

void Scheduler::RunBatch() {
  draws_.clear();
  const Clock::time_point start = Clock::now();
  const Status status = context_.Run(items_);
  ++counters_.passes;
  counters_.pass_seconds += std::chrono::duration<double>(Clock::now() - start).count();
  if (!status.ok()) return FailBatch(status);
  int64_t row = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    Stream& stream = *batch_[i];
    const int64_t rows = static_cast<int64_t>(items_[i].tokens.size());
    const bool prompt = stream.in_prompt();
    stream.stored += rows;
    row += rows;
    if (prompt) {
      counters_.prompt_tokens += rows;
      const int64_t cut = cuts_.Last(stream.stored);
      if (stream.stored == cuts_.At(cut) && KeepsPrefix(stream, cut)) {
        prefixes_.Insert(*stream.sequence,
                         std::span(stream.request.prompt).first(static_cast<size_t>(stream.stored)),
                         stream.keys[static_cast<size_t>(cut - 1)]);
      }
    }
    if (stream.stored == stream.length()) draws_.emplace_back(&stream, row - 1);
  }
}

void Scheduler::FailBatch(const Status& status) {
  if (batch_.size() == 1) return End(*batch_[0], FinishReason::kFailed, status);
  for (size_t i = 0; i < batch_.size(); ++i) {
    batch_[i]->alone_until = batch_[i]->stored + static_cast<int64_t>(items_[i].tokens.size());
    Preempt(*batch_[i]);
  }
}

void Scheduler::DrawTokens() {
  std::vector<Stream*> greedy, sampled;
  std::vector<int64_t> greedy_rows, sampled_rows;
  for (const auto& [stream, row] : draws_) {
    (stream->greedy() ? greedy : sampled).push_back(stream);
    (stream->greedy() ? greedy_rows : sampled_rows).push_back(row);
  }
  if (!greedy.empty()) {
    const auto drawn = context_.GreedyTokens(greedy_rows);
    for (size_t i = 0; i < greedy.size(); ++i) {
      // Where they fail together, each is asked for its own.
      const auto own = drawn.ok() ? drawn : context_.GreedyTokens({&greedy_rows[i], 1});
      if (own.ok()) {
        Deliver(*greedy[i], {{(*own)[drawn.ok() ? i : 0], 0}, {}});
      } else {
        End(*greedy[i], FinishReason::kFailed, own.status());
      }
    }
  }
  if (sampled.empty()) return;
  const auto logits = context_.Logits(sampled_rows);
  const size_t vocabulary = static_cast<size_t>(context_.model().config().vocabulary);
  for (size_t i = 0; i < sampled.size(); ++i) {
    Result<NewToken> token = logits.ok() ? sampled[i]->Sample(logits->subspan(i * vocabulary, vocabulary))
                                         : Result<NewToken>(logits.status());
    if (token.ok()) {
      Deliver(*sampled[i], std::move(*token));
    } else {
      End(*sampled[i], FinishReason::kFailed, token.status());
    }
  }
}

void Scheduler::Deliver(Stream& stream, NewToken token) {
  const Tokenizer& tokenizer = context_.model().tokenizer();
  const Token id = token.chosen.token;
  const bool first = stream.usage().new_tokens == 0;
  const bool finished =
      stream.Take(std::move(token), tokenizer.Piece(id), tokenizer.IsEndOfGeneration(id), sequence_limit_);
  if (first) {
    ++counters_.first_tokens;
    counters_.first_token_seconds += (stream.usage().queue_ms + stream.usage().prompt_ms) / 1000;
  }
  counters_.new_tokens += stream.length() > stream.stored ? 1 : 0;
  if (finished) Retire(stream, FinishReason::kEnd);
}

void Scheduler::Preempt(Stream& stream) {
  ++counters_.preemptions;
  cache_.RemoveSequence(*stream.sequence);
  stream.sequence.reset();
  stream.stored = 0;
  Move(stream, running_, waiting_);
}

void Scheduler::End(Stream& stream, FinishReason reason, Status status) {
  stream.Finish(reason, std::move(status));
  Retire(stream, reason);
}

}  // namespace blockgtq::serve
