// A pool of threads for short parallel regions: workers spin for a little while between regions, then sleep.
// Decoding enters some 200 regions a token, so the latency of one (about a microsecond) decides its speed; a
// task queue or OpenMP's runtime under a sanitizer does not give that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "blockgtq/status.h"

namespace blockgtq {

/// `threads`, or one a core where that is not positive.
int ThreadsOrCores(int threads);
/// The threads that an option asks for, 0 being one a core. Errors: kInvalidArgument (not in 0..1024).
Result<int> ThreadCount(int threads);

class ThreadPool {
 public:
  /// threads >= 1, the calling thread included; a smaller value counts as 1. When the system refuses a thread
  /// the pool makes do with those it has: threads() tells.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Runs body(task, worker) for each task in [0, tasks); worker in [0, threads()). Tasks are handed out one
  /// at a time, in order, to whichever worker is free; returns when all are done, and what the tasks wrote is
  /// then visible to the caller. The caller works too, as worker 0, and never waits for a worker that is
  /// asleep.
  ///
  /// Not re-entrant: a body must not call Run of the same pool, and two threads must not call Run of one pool
  /// at the same time (debug builds assert it). A body must not throw.
  void Run(int64_t tasks, const std::function<void(int64_t task, int worker)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace blockgtq
