#include "serve/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <latch>
#include <memory>
#include <thread>

namespace kvant {
namespace worker_pool_test {

using namespace std::chrono_literals;

TEST(WorkerPool, RunsEveryTaskOfABurstAtOnce) {
  constexpr int kTasks = 16;
  for (int burst = 0; burst < 20; ++burst) {
    // No task ends before all tasks have begun. The pool ends first, because a task may still be inside the
    // latch when the wait is over.
    std::latch begun(kTasks);
    WorkerPool pool(kTasks);
    for (int i = 0; i < kTasks; ++i) pool.run([&begun] { begun.arrive_and_wait(); });
    begun.wait();
  }
}

TEST(WorkerPool, RunsABurstAtOnceAfterItsThreadsHaveWaited) {
  constexpr int kTasks = 16;
  // All latches outlive the tasks, which may still be inside a latch when its wait is over.
  std::deque<std::latch> latches;
  WorkerPool pool(kTasks);
  for (int n = 2; n <= kTasks; n += 2) {
    std::latch& begun = latches.emplace_back(n);
    for (int i = 0; i < n; ++i) pool.run([&begun] { begun.arrive_and_wait(); });
    begun.wait();
    std::this_thread::sleep_for(5ms);
  }
}

TEST(WorkerPool, RunsNoMoreTasksAtOnceThanItMay) {
  std::atomic<int> running{0}, most{0}, done{0};
  {
    WorkerPool pool(3);
    for (int i = 0; i < 30; ++i) {
      pool.run([&] {
        const int now = ++running;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        std::this_thread::sleep_for(2ms);
        --running;
        ++done;
      });
    }
  }
  EXPECT_EQ(most, 3);
  EXPECT_EQ(done, 30);
}

TEST(WorkerPool, KeepsNothingOfATaskThatHasEnded) {
  auto held = std::make_shared<int>(0);
  std::latch done(1);
  WorkerPool pool(1);
  pool.run([&done, held] { done.count_down(); });
  done.wait();
  for (int i = 0; i < 1000 && held.use_count() > 1; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace worker_pool_test
}  // namespace kvant
