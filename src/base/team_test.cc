#include "base/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace kvant {
namespace {

TEST(Team, RunsTheBodyOnceOnEachThread) {
  for (const int n_threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> runs(n_threads);
    run_team(n_threads, [&](Team& team) {
      EXPECT_EQ(team.size(), n_threads);
      ++runs[team.index()];
    });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST(Team, HandsOutEachItemOnceLoopAfterLoop) {
  constexpr int kLoops = 50;
  for (const int n_items : {0, 1, 3, 100}) {
    std::vector<std::atomic<int>> visits(n_items);
    run_team(4, [&](Team& team) {
      for (int loop = 0; loop < kLoops; ++loop) team.for_each(n_items, [&](int i) { ++visits[i]; });
    });
    for (const auto& count : visits) EXPECT_EQ(count, kLoops);
  }
}

TEST(Team, WaitsForAllItemsBeforeGoingOn) {
  constexpr int kItems = 64;
  constexpr int kLoops = 20;
  std::atomic<int> done{0};
  std::atomic<int> too_early{0};
  run_team(3, [&](Team& team) {
    for (int loop = 1; loop <= kLoops; ++loop) {
      team.for_each(kItems, [&](int) { ++done; });
      if (done.load() < loop * kItems) ++too_early;
      team.barrier();
    }
  });
  EXPECT_EQ(too_early, 0);
  EXPECT_EQ(done, kLoops * kItems);
}

TEST(Team, PublishesWritesAcrossTheBarrier) {
  constexpr int kThreads = 4;
  int plain[kThreads] = {};  // The numbers are not atomic, so the barrier must order their accesses.
  std::atomic<int> wrong{0};
  run_team(kThreads, [&](Team& team) {
    for (int round = 1; round <= 100; ++round) {
      plain[team.index()] = round;
      team.barrier();
      for (const int value : plain) wrong += value == round ? 0 : 1;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Team, RunsAnActionOnceBeforeAnyThreadGoesOn) {
  constexpr int kThreads = 4;
  int actions = 0;  // The number is not atomic, so the barrier must order its accesses.
  std::atomic<int> wrong{0};
  run_team(kThreads, [&](Team& team) {
    for (int round = 1; round <= 200; ++round) {
      team.once([&] { ++actions; });
      wrong += actions == round ? 0 : 1;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(Team, RunsTheLastActionAfterAllItems) {
  constexpr int kItems = 37;
  std::atomic<int> done{0};
  std::atomic<int> wrong{0};
  int seen = 0;
  run_team(3, [&](Team& team) {
    for (int loop = 1; loop <= 50; ++loop) {
      team.for_each(
          kItems, [&](int) { ++done; }, [&] { seen = done; });
      wrong += seen == loop * kItems ? 0 : 1;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(StandingTeam, RunsEachPieceOfWorkOnAllThreads) {
  for (const int n_threads : {1, 2, 5}) {
    StandingTeam standing(n_threads);
    std::vector<int> runs(n_threads);
    for (int piece = 1; piece <= 100; ++piece) {
      standing.run([&](Team& team) { ++runs[team.index()]; });
      EXPECT_EQ(runs, std::vector<int>(n_threads, piece));
    }
  }
}

TEST(StandingTeam, UsesNoProcessorTimeBetweenPiecesOfWork) {
  StandingTeam standing(4);
  standing.run([](Team&) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // Threads spin for a shorter time at most.
  const std::clock_t start = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  // Spinning would take 3 times 200 ms of CPU time, because this thread sleeps.
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 20);
}

}  // namespace
}  // namespace kvant
