// ThreadPool: regions are announced in one atomic word that workers watch; a worker joins an open region by
// incrementing that word's count, so a region ends as soon as its tasks are done and nobody who joined is
// left.
#include "src/core/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace blockgtq {
namespace {

// State word: bits 0..30 workers inside the region, bit 31 "open", bits 32..63 the region's number.
constexpr uint64_t kCountMask = 0x7fffffffu;
constexpr uint64_t kOpen = 0x80000000u;
constexpr int kEpochShift = 32;

// An idle worker pauses, then yields its core, then sleeps. A wake-up through the kernel costs some 50 us,
// which is why sleeping sooner would not pay.
constexpr std::chrono::microseconds kPauseTime{30};
constexpr std::chrono::microseconds kAwakeTime{60};

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Waits between two looks at an atomic: pauses at first, yields later or when cores are fewer than threads.
class Spinner {
 public:
  explicit Spinner(bool oversubscribed) : yielding_(oversubscribed) {}

  /// False once the time to stay awake has passed.
  bool Wait() {
    if (yielding_) {
      std::this_thread::yield();
    } else {
      Pause();
    }
    if (++rounds_ % kRoundsPerClock != 0) return true;
    const auto now = std::chrono::steady_clock::now();
    if (rounds_ == kRoundsPerClock) start_ = now;
    if (now - start_ > kPauseTime) yielding_ = true;
    return now - start_ < kAwakeTime;
  }

 private:
  static constexpr uint64_t kRoundsPerClock = 32;
  uint64_t rounds_ = 0;
  bool yielding_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

struct ThreadPool::Impl {
  // Apart from each other: workers watch `state` while the tasks' counter changes hands.
  alignas(64) std::atomic<uint64_t> state{0};
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> sleepers{0};
  std::atomic<uint32_t> wake{0};
  std::atomic<bool> stop{false};

  // Written only while no worker is inside and the region is closed.
  const std::function<void(int64_t, int)>* body = nullptr;
  int64_t tasks = 0;

  bool oversubscribed = false;
  std::vector<std::thread> workers;

  void WorkOnTasks(int worker) {
    for (int64_t task = next.fetch_add(1, std::memory_order_relaxed); task < tasks;
         task = next.fetch_add(1, std::memory_order_relaxed)) {
      (*body)(task, worker);
    }
  }

  bool HasNews(uint32_t last_epoch) const {
    const uint64_t seen = state.load();
    return stop.load() || ((seen & kOpen) != 0 && static_cast<uint32_t>(seen >> kEpochShift) != last_epoch);
  }

  void Sleep(uint32_t last_epoch) {
    const uint32_t ticket = wake.load();
    // Announced before the last look: a caller that opens a region after that look sees the sleeper.
    sleepers.fetch_add(1);
    if (!HasNews(last_epoch)) wake.wait(ticket);
    sleepers.fetch_sub(1);
  }

  void WakeSleepers() {
    if (sleepers.load() == 0) return;
    wake.fetch_add(1);
    wake.notify_all();
  }

  void WorkerLoop(int worker) {
    uint32_t last_epoch = 0;
    Spinner spinner(oversubscribed);
    while (!stop.load(std::memory_order_relaxed)) {
      uint64_t seen = state.load(std::memory_order_acquire);
      const auto epoch = static_cast<uint32_t>(seen >> kEpochShift);
      if ((seen & kOpen) != 0 && epoch != last_epoch) {
        if (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
        WorkOnTasks(worker);
        state.fetch_sub(1, std::memory_order_release);
        last_epoch = epoch;
        spinner = Spinner(oversubscribed);
      } else if (!spinner.Wait()) {
        Sleep(last_epoch);
        spinner = Spinner(oversubscribed);
      }
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  const unsigned cores = std::thread::hardware_concurrency();
  impl_->oversubscribed = cores != 0 && threads > static_cast<int>(cores);
  for (int worker = 1; worker < threads; ++worker) {
    try {
      impl_->workers.emplace_back([impl = impl_.get(), worker] { impl->WorkerLoop(worker); });
    } catch (const std::system_error&) {
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true);
  impl_->WakeSleepers();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::Run(int64_t tasks, const std::function<void(int64_t task, int worker)>& body) {
  Impl& impl = *impl_;
  assert(impl.body == nullptr && "ThreadPool::Run called from inside a region");
  if (tasks <= 1 || impl.workers.empty()) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  impl.body = &body;
  impl.tasks = tasks;
  impl.next.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (impl.state.load(std::memory_order_relaxed) >> kEpochShift) + 1;
  // Epoch 0 is what a worker starts from; after 2^32 regions it is skipped.
  const uint64_t number = static_cast<uint32_t>(epoch) == 0 ? 1 : static_cast<uint32_t>(epoch);
  impl.state.store(number << kEpochShift | kOpen);
  impl.WakeSleepers();

  impl.WorkOnTasks(0);

  impl.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  Spinner spinner(impl.oversubscribed);
  while ((impl.state.load(std::memory_order_acquire) & kCountMask) != 0) spinner.Wait();
  impl.body = nullptr;
}

int ThreadsOrCores(int threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Result<int> ThreadCount(int threads) {
  constexpr int kMaxThreads = 1024;
  if (threads < 0 || threads > kMaxThreads) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("threads: {} is not in 1..{} (0: one a core)", threads, kMaxThreads));
  }
  return ThreadsOrCores(threads);
}

}  // namespace blockgtq
