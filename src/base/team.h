// Team: the threads that run one piece of work together. ggml's threads form one inside an op; run_team
// starts one elsewhere.
#pragma once

#include <atomic>
#include <functional>

namespace kvant {

// A barrier for threads that all are running already: spins briefly, then yields the core.
class SpinBarrier {
 public:
  void wait(int n_threads);

 private:
  std::atomic<int> arrived_{0};
  std::atomic<int> generation_{0};
};

// Hands out indices 0, 1, 2, ... to the threads of a team, each once.
class WorkCounter {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> next_{0};
};

// What the threads of one team share.
struct TeamState {
  SpinBarrier barrier;
  WorkCounter counter;
};

// One thread's view of its team.
class Team {
 public:
  Team(int index, int size, TeamState& shared) : index_(index), size_(size), shared_(shared) {}
  int index() const { return index_; }
  int size() const { return size_; }

  // Returns when every thread of the team has called it.
  void barrier() { shared_.barrier.wait(size_); }

  // Runs body(i) for each i in [0, n), every i on one thread of the team, and waits for all of them.
  // Every thread of the team must call it with the same n. Items are handed out dynamically.
  template <class Body>
  void for_each(int n, const Body& body) {
    for (int i = shared_.counter.take(); i < n; i = shared_.counter.take()) body(i);
    barrier();
    if (index_ == 0) shared_.counter.reset();
    barrier();
  }

 private:
  int index_;
  int size_;
  TeamState& shared_;
};

// Runs body(team) on n_threads threads (this one among them) and returns when all are done.
void run_team(int n_threads, const std::function<void(Team&)>& body);

}  // namespace kvant
