// See engine_thread.h.
#include "src/serve/engine_thread.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace blockgtq::serve {

EngineThread::EngineThread(std::unique_ptr<Scheduler> scheduler, int64_t max_waiting)
    : scheduler_(std::move(scheduler)),
      max_waiting_(max_waiting),
      stats_(scheduler_->stats()),
      thread_([this] { Loop(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<std::vector<RequestId>> EngineThread::Submit(std::vector<Request> requests, const EventSink& sink) {
  for (const Request& request : requests) BGTQ_RETURN_IF_ERROR(scheduler_->Check(request));
  const int64_t count = static_cast<int64_t>(requests.size());
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    const int64_t waiting = stats_.waiting + submitted_;
    if (waiting + count > max_waiting_) {
      return Status(
          ErrorCode::kOutOfMemory,
          fmt::format("{} requests wait already, of {} that may: try again later", waiting, max_waiting_));
    }
    for (Request& request : requests) {
      ids.push_back(next_id_++);
      work_.emplace_back([id = ids.back(), request = std::move(request), sink](Scheduler& scheduler) mutable {
        scheduler.Submit(id, std::move(request), sink);
      });
    }
    submitted_ += count;
  }
  wake_.notify_one();
  return ids;
}

void EngineThread::Cancel(RequestId id) {
  Post([id](Scheduler& scheduler) { scheduler.Cancel(id); });
}

void EngineThread::Post(std::function<void(Scheduler&)> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

SchedulerStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void EngineThread::Loop() {
  constexpr std::chrono::milliseconds kStalled{1};
  bool stalled = false;
  std::deque<std::function<void(Scheduler&)>> work;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (stalled) wake_.wait_for(lock, kStalled, [&] { return stop_ || !work_.empty(); });
      wake_.wait(lock, [&] { return stop_ || !work_.empty() || !scheduler_->idle(); });
      if (stop_) break;
      work.swap(work_);
      stats_.waiting += std::exchange(submitted_, 0);  // until the pass has told how many of them run
    }
    for (auto& item : work) item(*scheduler_);
    work.clear();
    stalled = !scheduler_->idle() && !scheduler_->Step();
    const SchedulerStats now = scheduler_->stats();
    const std::lock_guard lock(mutex_);
    stats_ = now;
  }
  for (auto& item : work_) item(*scheduler_);  // so that every sink is known, and told
  scheduler_.reset();
}

}  // namespace blockgtq::serve
