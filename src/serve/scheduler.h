// Continuous batching: many requests share one model and one packed cache, a pass at a time.
//
// Each pass runs one token of every request that is past its prompt, and chunks of prompts in turn. What a
// request says does not depend on its company: prompts are cut at the same places (PromptCuts), whatever else
// runs, and a row of a pass is computed as it would be alone (docs/server.md says for which backends).
// Without pages, first the prefix cache gives way, then kept slots, then the youngest request, which waits
// and is computed again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/cache/session.h"
#include "src/engine/context.h"
#include "src/serve/prefix_cache.h"
#include "src/serve/stream.h"

namespace blockgtq::serve {

struct SchedulerOptions {
  int max_running = 16;        // requests in one pass; also the number of slots
  int64_t chunk = 256;         // prompt tokens a pass, of one request; a multiple of 64 (see PromptCuts)
  int64_t max_sequence = 0;    // prompt and new tokens of a request; 0: the model's context length
  size_t prefix_entries = 64;  // of the prefix cache; 0: off
  int max_top_logprobs = 20;
  int64_t max_stop_strings = 16;
};

/// Counters since the start, and what is so now.
struct SchedulerStats {
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, preemptions = 0;
  int64_t prompt_tokens = 0;  // run, those that a preemption made run again too
  int64_t cached_tokens = 0;  // of prompts, not run
  int64_t new_tokens = 0;
  int64_t passes = 0, prefix_evictions = 0;
  double pass_seconds = 0;
  double first_token_seconds = 0;  // sum over first_tokens requests, from their arrival
  int64_t first_tokens = 0;
  int64_t running = 0, waiting = 0, prefix_entries = 0;
  int64_t page_tokens_used = 0, page_tokens = 0;  // pages taken and all, in tokens
  int64_t sequence_tokens = 0;                    // of running requests and kept slots
  int64_t kv_bytes = 0, kv_bytes_fp16 = 0;        // of those: as they are kept, and in fp16
  bool watched = false;                           // moments are gathered (engine/moments_watch.h)
  int64_t moments_tokens = 0;
  int64_t moments_failures = 0;       // to write them or to measure drift
  double drift = 0, worst_drift = 0;  // of the plan; 0: not measured yet
};

struct SlotInfo {
  int slot = 0;
  bool busy = false;   // a request runs in it, or it is being saved
  int64_t tokens = 0;  // kept, or of the running request
};

/// One thread at a time.
class Scheduler {
 public:
  /// context outlives this and is used by nothing else. Errors: kInvalidArgument (an option).
  static Result<std::unique_ptr<Scheduler>> Create(Context& context, const SchedulerOptions& options);
  ~Scheduler();

  /// On a backend that loads late (Backend::loads_late), runs the passes of a prompt of 4,096 tokens, or as
  /// many as a sequence may have, and of a token behind it, so that no request waits for what they load;
  /// elsewhere does nothing. Before the first request. Errors: those of Context::Run and GreedyTokens.
  Status WarmUp();

  const SchedulerOptions& options() const { return options_; }
  /// Tokens that a request's prompt and new tokens may have together: max_sequence, or the whole cache.
  int64_t sequence_limit() const { return sequence_limit_; }
  /// kInvalidArgument naming what is out of range. Safe from any thread.
  Status Check(const Request& request) const;

  /// Queues a request that Check accepts; id: larger than all before. The sink gets events until one has
  /// `finished`.
  void Submit(RequestId id, Request request, EventSink sink);
  /// Ends the request with kCancelled; nothing when it is not there any more.
  void Cancel(RequestId id);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  /// Admits what fits and runs one pass. False when there was nothing to run: what waits, waits for a slot
  /// that is being saved, or was only now put back.
  bool Step();

  SchedulerStats stats() const;

  std::vector<SlotInfo> slots() const;
  /// What sessions are checked against: of this cache any thread may use what never changes.
  const KvCache& cache() const { return cache_; }
  /// The sequence that a slot keeps, on its way to a session file. Until EndSave the slot is busy, and where
  /// saves_aside() any thread may write the session meanwhile. Errors: kInvalidArgument (no such slot; busy;
  /// nothing kept).
  Result<PendingSession> BeginSave(int slot);
  void EndSave(int slot);
  /// False for a cache whose bytes other threads cannot read (a device's).
  bool saves_aside() const { return cache_.options().memory == &HostMemory(); }
  /// The slot keeps the session's sequence, instead of what it held; the number of its tokens. Errors:
  /// kInvalidArgument (no such slot; busy), those of SessionFile::Load, kOutOfMemory after the prefix cache
  /// has given way.
  Result<int64_t> RestoreSlot(int slot, const SessionFile& session);
  /// Drops what the slot keeps; the number of its tokens. Errors: kInvalidArgument (no such slot; busy).
  Result<int64_t> EraseSlot(int slot);

 private:
  using Streams = std::vector<std::unique_ptr<Stream>>;  // by id, rising
  struct Slot {
    std::vector<Token> tokens;
    std::optional<SequenceId> sequence;
    int64_t last_used = 0;  // turn
    bool saving = false;    // between BeginSave and EndSave
  };

  Scheduler(Context& context, const SchedulerOptions& options, int64_t sequence_limit);

  // A pass, in order.
  void Admit();
  void MakeRoomForDecoding();
  void ChooseBatch();
  void RunBatch();
  void DrawTokens();

  /// Made when the first request needs it.
  std::shared_ptr<const JsonVocabulary> json_vocabulary();

  static void Move(const Stream& stream, Streams& from, Streams& to);
  static std::unique_ptr<Stream> Remove(Streams& streams, const Stream& stream);  // null: not there

  bool Ready(const Stream& stream) const;
  /// Whether the stream's prompt becomes an entry of the prefix cache at its cut `cut` (1 up).
  bool KeepsPrefix(const Stream& stream, int64_t cut) const;
  /// Gives the stream a sequence with room for its tokens and one more. Errors: kOutOfMemory.
  Status Begin(Stream& stream);
  /// The longest beginning of its prompt that is in the cache, or an empty sequence.
  Status TakeBeginning(Stream& stream);
  /// Moves what the stream's slot keeps into the stream, where more than `better_than` tokens of its prompt
  /// are there; else the slot's content goes.
  bool TakeSlot(Stream& stream, int64_t better_than);
  /// Undoes TakeBeginning.
  void ReturnBeginning(Stream& stream);
  void AddToBatch(Stream& stream);
  void Deliver(Stream& stream, NewToken token);
  /// A pass failed: the only stream in it ends, several are run again, each alone.
  void FailBatch(const Status& status);

  /// Frees pages that no running request holds. False when there are none.
  bool GiveWay() { return prefixes_.EvictOldest() || DropIdleSlot(); }
  bool DropIdleSlot();
  void ReleaseSlot(Slot& slot);
  void Preempt(Stream& stream);
  /// Ends a stream that has not told its sink yet.
  void End(Stream& stream, FinishReason reason, Status status = Status::Ok());
  /// Forgets a stream whose sink knows; its slot keeps the sequence.
  void Retire(Stream& stream, FinishReason reason);
  bool SlotBusy(int slot) const;
  /// Some slot is being saved: its pages may be free soon.
  bool Saving() const;
  /// kInvalidArgument where there is no such slot; CheckIdleSlot: also where it is busy. what: "save it".
  Status CheckSlot(int slot) const;
  Status CheckIdleSlot(int slot, std::string_view what) const;

  Context& context_;
  KvCache& cache_;
  const SchedulerOptions options_;
  const int64_t sequence_limit_;
  const PromptCuts cuts_;
  PrefixCache prefixes_;
  std::shared_ptr<const JsonVocabulary> json_vocabulary_;
  Streams running_, waiting_;
  std::vector<Slot> slots_;
  std::vector<Stream*> batch_;                      // of the pass
  std::vector<SequenceTokens> items_;               // [batch]
  std::vector<std::pair<Stream*, int64_t>> draws_;  // streams that want a token, and their rows in the pass
  int64_t turn_ = 0;
  SchedulerStats counters_;
};

}  // namespace blockgtq::serve
