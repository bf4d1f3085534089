#include "base/team.h"

#include <thread>
#include <vector>

namespace kvant {

void SpinBarrier::wait(int n_threads) {
  const int generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    return;
  }
  constexpr int kSpins = 2000;  // a few microseconds: longer waits share the core
  for (int spin = 0; generation_.load(std::memory_order_acquire) == generation; ++spin) {
    if (spin > kSpins) std::this_thread::yield();
  }
}

void run_team(int n_threads, const std::function<void(Team&)>& body) {
  TeamState shared;
  std::vector<std::thread> threads;
  threads.reserve(n_threads - 1);
  for (int i = 1; i < n_threads; ++i) {
    threads.emplace_back([&, i] {
      Team team(i, n_threads, shared);
      body(team);
    });
  }
  Team team(0, n_threads, shared);
  body(team);
  for (std::thread& t : threads) t.join();
}

}  // namespace kvant
