// The thread that steps a scheduler, and the doors to it that any thread may use.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "src/serve/scheduler.h"

namespace blockgtq::serve {

class EngineThread {
 public:
  /// max_waiting: requests that are submitted and not yet running; more are refused.
  EngineThread(std::unique_ptr<Scheduler> scheduler, int64_t max_waiting);
  /// Cancels what still runs and joins; every sink gets its last event before.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  const SchedulerOptions& options() const { return scheduler_->options(); }
  int64_t sequence_limit() const { return scheduler_->sequence_limit(); }
  const KvCache& cache() const { return scheduler_->cache(); }

  /// Queues several requests, all or none, so that the answers to one question are not cut apart. sink is
  /// called on the engine's thread. Errors: those of Scheduler::Check; kOutOfMemory when the queue is full.
  Result<std::vector<RequestId>> Submit(std::vector<Request> requests, const EventSink& sink);
  void Cancel(RequestId id);
  /// Runs `work` between two passes.
  void Post(std::function<void(Scheduler&)> work);
  /// As of the end of the last pass.
  SchedulerStats stats() const;

 private:
  void Loop();

  std::unique_ptr<Scheduler> scheduler_;
  const int64_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void(Scheduler&)>> work_;  // guarded by mutex_, as is what follows
  int64_t submitted_ = 0;                             // requests in work_
  SchedulerStats stats_;
  RequestId next_id_ = 1;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace blockgtq::serve
