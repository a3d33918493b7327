// ThreadPool: every task runs once, results are visible after Run, and no state leaks between regions.
#include "src/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace blockgtq {
namespace {

class ThreadPoolOfSize : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolOfSize, RunsEveryTaskOnceAndShowsItsWritesToTheCaller) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.threads(), GetParam());
  for (int64_t tasks : {0, 1, 2, 3, 17, 1000}) {
    std::vector<int> runs(static_cast<size_t>(tasks), 0);  // plain ints: a race would show under TSan
    std::atomic<bool> workers_in_range{true};
    pool.Run(tasks, [&](int64_t task, int worker) {
      ++runs[static_cast<size_t>(task)];
      if (worker < 0 || worker >= pool.threads()) workers_in_range = false;
    });
    EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(tasks), 1)) << tasks << " tasks";
    EXPECT_TRUE(workers_in_range);
  }
}

TEST_P(ThreadPoolOfSize, ManySmallRegionsEachSeeTheOneBefore) {
  ThreadPool pool(GetParam());
  constexpr int kRegions = 3000;
  std::vector<int64_t> values(5, 0);
  for (int region = 0; region < kRegions; ++region) {
    pool.Run(5, [&](int64_t task, int) {
      // A task of region n reads what another worker may have written in region n - 1.
      values[static_cast<size_t>(task)] += region;
    });
  }
  EXPECT_EQ(values, std::vector<int64_t>(5, int64_t{kRegions} * (kRegions - 1) / 2));
}

TEST_P(ThreadPoolOfSize, WorkersThatWentToSleepComeBack) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> sum{0};
  for (int region = 0; region < 5; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    pool.Run(100, [&](int64_t task, int) { sum += task; });
  }
  EXPECT_EQ(sum, 5 * 4950);
}

TEST_P(ThreadPoolOfSize, IsDestroyedCleanlyWhileIdleAndWhileItsWorkersStillSpin) {
  { ThreadPool never_used(GetParam()); }
  {
    ThreadPool just_used(GetParam());
    just_used.Run(3, [](int64_t, int) {});
  }
  {
    ThreadPool asleep(GetParam());
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolOfSize, testing::Values(1, 2, 3, 16));

TEST(ThreadPool, UsesItsWorkersWhenTasksAreLong) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  pool.Run(2, [&](int64_t, int) {
    ++inside;
    // Both tasks must be in flight at once to get out before the deadline.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (inside == 2) met = true;
  });
  EXPECT_TRUE(met);
}

TEST(ThreadPool, GivesNoTwoTasksTheSameWorkerAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<bool> clash{false};
  pool.Run(2000, [&](int64_t, int worker) {
    if (busy[static_cast<size_t>(worker)].fetch_add(1) != 0) clash = true;
    busy[static_cast<size_t>(worker)].fetch_sub(1);
  });
  EXPECT_FALSE(clash);
}

TEST(ThreadPool, CountsFewerThanOneThreadAsOne) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.threads(), 1);
  int runs = 0;
  pool.Run(3, [&](int64_t, int) { ++runs; });
  EXPECT_EQ(runs, 3);
}

TEST(ThreadPool, HandsOutTasksInOrderToOneThread) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  pool.Run(10, [&](int64_t task, int) { order.push_back(task); });
  std::vector<int64_t> expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

}  // namespace
}  // namespace blockgtq
