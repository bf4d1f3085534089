// Team is the set of threads that run one piece of work together. The CPU backend and the model split
// matrices and heads among a team's threads.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/barrier.h"

namespace kvant {

// Hands out indices 0, 1, 2, ... to the threads of a team, each once.
class WorkCounter {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> next_{0};
};

// Holds what the threads of one team share.
struct TeamState {
  Barrier barrier;
  WorkCounter counter;
};

// Team is one thread's view of its team.
class Team {
 public:
  Team(int index, int size, TeamState& shared) : index_(index), size_(size), shared_(shared) {}
  int index() const { return index_; }
  int size() const { return size_; }

  // Returns when every thread of the team has called barrier().
  void barrier() {
    once([] {});
  }

  // Acts as a barrier. The last thread to arrive runs action() before any thread continues.
  template <class Action>
  void once(const Action& action) {
    shared_.barrier.wait(size_, action);
  }

  // Runs body(i) for each i in [0, n), each on one thread of the team, and hands out indices dynamically.
  // When all are done, one thread runs last() before any thread continues. Every thread of the team must call
  // for_each() with the same n.
  template <class Body, class Action>
  void for_each(int n, const Body& body, const Action& last) {
    for (int i = shared_.counter.take(); i < n; i = shared_.counter.take()) body(i);
    once([&] {
      shared_.counter.reset();
      last();
    });
  }
  template <class Body>
  void for_each(int n, const Body& body) {
    for_each(n, body, [] {});
  }

 private:
  int index_;
  int size_;
  TeamState& shared_;
};

// Runs body(team) on n_threads threads, including the caller's, and returns when all threads are done.
void run_team(int n_threads, const std::function<void(Team&)>& body);

// StandingTeam is a team whose threads live on between pieces of work, because starting threads takes longer
// than a short piece. Idle threads sleep.
class StandingTeam {
 public:
  // Starts n_threads - 1 threads. If the system refuses some of them, the team is smaller.
  explicit StandingTeam(int n_threads);
  ~StandingTeam();
  StandingTeam(const StandingTeam&) = delete;
  StandingTeam& operator=(const StandingTeam&) = delete;

  int size() const { return size_; }

  // Runs body(team) on all threads, including the caller's, and returns when all threads are done.
  void run(const std::function<void(Team&)>& body);

 private:
  void work(int index);

  TeamState shared_;
  std::atomic<int> size_{0};                          // 0 until all threads have started
  const std::function<void(Team&)>* body_ = nullptr;  // null ends the threads
  std::vector<std::thread> threads_;
};

}  // namespace kvant
