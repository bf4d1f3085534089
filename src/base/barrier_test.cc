#include "base/barrier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "base/machine_limits.h"

namespace kvant {
namespace {

using std::chrono::milliseconds;

// Runs body(i) on n threads.
template <class Body>
void on_threads(int n, const Body& body) {
  std::vector<std::thread> threads;
  threads.reserve(n);
  for (int i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& t : threads) t.join();
}

TEST(Barrier, WakesThreadsThatSleep) {
  Barrier barrier;
  std::atomic<bool> released{false};
  std::atomic<int> woken{0};
  on_threads(4, [&](int i) {
    if (i == 0)
      std::this_thread::sleep_for(milliseconds(50));  // The other threads spin for a far shorter time.
    barrier.wait(4, [&] { released = true; });
    if (released) ++woken;
  });
  EXPECT_EQ(woken, 4);
}

TEST(Barrier, LetsThreadsSleepThatWaitLong) {
  Barrier barrier;
  const std::clock_t start = std::clock();
  on_threads(4, [&](int i) {
    if (i == 0) std::this_thread::sleep_for(milliseconds(200));
    barrier.wait(4, [] {});
  });
  // Spinning would take 3 times 200 ms of CPU time.
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 20);
}

// A lost wake-up would leave a thread asleep for ever. There are more threads than cores, and pauses of all
// lengths around the spinning time. Releases therefore meet threads that are awake, that are falling asleep
// and that sleep.
TEST(Barrier, LosesNoWakeUpAmongMoreThreadsThanCores) {
  for (const int n_threads : {2, 3, 16}) {
    Barrier barrier;
    int phases = 0;  // The number is not atomic, so the barrier must order its accesses.
    std::atomic<int> wrong{0};
    constexpr int kPhases = 400;
    on_threads(n_threads, [&](int i) {
      for (int phase = 1; phase <= kPhases; ++phase) {
        if (phase % n_threads == i) std::this_thread::sleep_for(std::chrono::microseconds(phase % 80));
        barrier.wait(n_threads, [&] { ++phases; });
        wrong += phases == phase ? 0 : 1;
        barrier.wait(n_threads, [] {});
      }
    });
    EXPECT_EQ(phases, kPhases) << n_threads;
    EXPECT_EQ(wrong, 0) << n_threads;
  }
}

TEST(Barrier, HoldsBackNobodyWhereProgramsCompeteForTheCores) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (std::size_t i = 0; i < allowed_processors().size(); ++i)
    busy.emplace_back([&] {
      while (!stop) {
      }
    });
  Barrier barrier;
  int phases = 0;
  on_threads(2, [&](int) {
    for (int phase = 0; phase < 100; ++phase) barrier.wait(2, [&] { ++phases; });
  });
  stop = true;
  for (std::thread& t : busy) t.join();
  EXPECT_EQ(phases, 100);
}

}  // namespace
}  // namespace kvant
