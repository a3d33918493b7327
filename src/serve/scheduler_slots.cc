// What outlives a request: slots that keep sequences, session files, counters. See scheduler.h.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/engine/moments_watch.h"
#include "src/serve/scheduler.h"

namespace blockgtq::serve {

void Scheduler::Retire(Stream& stream, FinishReason reason) {
  ++(reason == FinishReason::kFailed      ? counters_.failed
     : reason == FinishReason::kCancelled ? counters_.cancelled
                                          : counters_.finished);
  if (stream.sequence.has_value()) {
    if (stream.request.slot >= 0 && reason != FinishReason::kFailed && stream.stored > 0) {
      Slot& slot = slots_[static_cast<size_t>(stream.request.slot)];
      ReleaseSlot(slot);
      slot.sequence = stream.sequence;
      slot.tokens.assign(stream.tokens().begin(), stream.tokens().begin() + stream.stored);
      slot.last_used = ++turn_;
    } else {
      cache_.RemoveSequence(*stream.sequence);
    }
  }
  if (Remove(running_, stream) == nullptr) Remove(waiting_, stream);
}

bool Scheduler::TakeSlot(Stream& stream, int64_t better_than) {
  if (stream.request.slot < 0) return false;
  Slot& slot = slots_[static_cast<size_t>(stream.request.slot)];
  if (!slot.sequence.has_value()) return false;
  const auto differ = std::ranges::mismatch(slot.tokens, stream.request.prompt);
  const int64_t common = std::min<int64_t>(differ.in1 - slot.tokens.begin(), stream.prompt_length() - 1);
  if (common <= better_than || !cache_.Truncate(*slot.sequence, common).ok()) {
    ReleaseSlot(slot);
    return false;
  }
  stream.sequence = std::exchange(slot.sequence, std::nullopt);
  stream.stored = common;
  stream.canonical = false;
  slot.tokens.clear();
  return true;
}

void Scheduler::ReturnBeginning(Stream& stream) {
  if (stream.canonical) {
    cache_.RemoveSequence(*stream.sequence);
  } else {
    Slot& slot = slots_[static_cast<size_t>(stream.request.slot)];
    // Without what was reserved: truncation frees pages past the end and needs none.
    const Status kept = cache_.Truncate(*stream.sequence, stream.stored);
    slot.sequence = stream.sequence;
    slot.tokens.assign(stream.tokens().begin(), stream.tokens().begin() + stream.stored);
    if (!kept.ok()) ReleaseSlot(slot);
  }
  stream.sequence.reset();
  stream.stored = 0;
}

void Scheduler::ReleaseSlot(Slot& slot) {
  if (slot.sequence.has_value()) cache_.RemoveSequence(*slot.sequence);
  slot.sequence.reset();
  slot.tokens.clear();
}

bool Scheduler::DropIdleSlot() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.sequence.has_value() && !slot.saving &&
        (oldest == nullptr || slot.last_used < oldest->last_used))
      oldest = &slot;
  }
  if (oldest == nullptr) return false;
  ReleaseSlot(*oldest);
  return true;
}

bool Scheduler::SlotBusy(int slot) const {
  return slots_[static_cast<size_t>(slot)].saving ||
         std::ranges::any_of(running_, [&](const auto& stream) { return stream->request.slot == slot; });
}

bool Scheduler::Saving() const { return std::ranges::any_of(slots_, &Slot::saving); }

Status Scheduler::CheckSlot(int slot) const {
  if (slot >= 0 && slot < options_.max_running) return Status::Ok();
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("slot {}: there are slots 0 to {}", slot, options_.max_running - 1));
}

Status Scheduler::CheckIdleSlot(int slot, std::string_view what) const {
  BGTQ_RETURN_IF_ERROR(CheckSlot(slot));
  if (!SlotBusy(slot)) return Status::Ok();
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("slot {}: {}; {} afterwards", slot,
                  slots_[static_cast<size_t>(slot)].saving ? "it is being saved" : "a request runs in it",
                  what));
}

std::vector<SlotInfo> Scheduler::slots() const {
  std::vector<SlotInfo> all;
  all.reserve(slots_.size());
  for (int i = 0; i < options_.max_running; ++i) {
    all.push_back({i, SlotBusy(i), static_cast<int64_t>(slots_[static_cast<size_t>(i)].tokens.size())});
  }
  for (const auto& stream : running_) {
    if (stream->request.slot >= 0) all[static_cast<size_t>(stream->request.slot)].tokens = stream->stored;
  }
  return all;
}

Result<PendingSession> Scheduler::BeginSave(int slot) {
  BGTQ_RETURN_IF_ERROR(CheckIdleSlot(slot, "save it"));
  Slot& kept = slots_[static_cast<size_t>(slot)];
  if (!kept.sequence.has_value()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("slot {}: holds nothing; run a request with \"id_slot\" first", slot));
  }
  BGTQ_ASSIGN_OR_RETURN(PendingSession session, PendingSession::Of(cache_, *kept.sequence, kept.tokens));
  kept.saving = true;
  return session;
}

void Scheduler::EndSave(int slot) { slots_[static_cast<size_t>(slot)].saving = false; }

Result<int64_t> Scheduler::RestoreSlot(int slot, const SessionFile& session) {
  BGTQ_RETURN_IF_ERROR(CheckIdleSlot(slot, "restore it"));
  Result<LoadedSession> loaded = session.Load(cache_);
  while (!loaded.ok() && loaded.status().code() == ErrorCode::kOutOfMemory && prefixes_.EvictOldest())
    loaded = session.Load(cache_);
  BGTQ_RETURN_IF_ERROR(loaded.status());
  Slot& kept = slots_[static_cast<size_t>(slot)];
  ReleaseSlot(kept);
  kept.sequence = loaded->sequence;
  kept.tokens = std::move(loaded->tokens);
  kept.last_used = ++turn_;
  return static_cast<int64_t>(kept.tokens.size());
}

Result<int64_t> Scheduler::EraseSlot(int slot) {
  BGTQ_RETURN_IF_ERROR(CheckIdleSlot(slot, "erase it"));
  Slot& kept = slots_[static_cast<size_t>(slot)];
  const int64_t tokens = static_cast<int64_t>(kept.tokens.size());
  ReleaseSlot(kept);
  return tokens;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.prefix_entries = static_cast<int64_t>(prefixes_.entries());
  stats.prefix_evictions = prefixes_.evictions();
  stats.page_tokens = cache_.options().max_tokens;
  stats.page_tokens_used = stats.page_tokens - cache_.free_tokens();
  const auto count = [&](SequenceId sequence, int64_t tokens) {
    stats.sequence_tokens += tokens;
    stats.kv_bytes += cache_.SequenceBytes(sequence);
    stats.kv_bytes_fp16 += cache_.HalfBytes(tokens);
  };
  for (const auto& stream : running_) count(*stream->sequence, stream->stored);
  for (const Slot& slot : slots_) {
    if (slot.sequence.has_value()) count(*slot.sequence, static_cast<int64_t>(slot.tokens.size()));
  }
  if (context_.watch() != nullptr) {
    const MomentsWatch::State state = context_.watch()->state();
    stats.watched = true;
    stats.moments_tokens = state.seen;
    stats.moments_failures = state.failures;
    if (state.drift.has_value()) {
      stats.drift = state.drift->mean;
      stats.worst_drift = state.drift->worst;
    }
  }
  return stats;
}

}  // namespace blockgtq::serve
