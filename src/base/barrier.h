// Barrier makes the threads of a team (team.h) wait for each other. Layers of a model have many such points,
// so a wait must cost little both on idle and on busy machines.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvant {

// A waiting thread spins for at most a millisecond, then sleeps until another thread wakes it. On an idle
// machine nearly all waits end while spinning. To wake a core of a virtual machine takes longer than most
// waits. Where other programs use the cores too, the awaited thread may not be running. Each wait that ends
// in sleep therefore halves the spinning time of the next waits, which frees the core soon. Each other wait
// makes the spinning time a little longer. If a waiting thread yielded instead, it would run after all other
// threads that are ready, which is many times slower on a busy machine.
class Barrier {
 public:
  // Returns when n_threads threads have called wait(). The last thread to arrive runs `last` before any
  // thread continues.
  template <class Action>
  void wait(int n_threads, const Action& last) {
    const std::uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < n_threads) return await_change(phase);
    arrived_.store(0, std::memory_order_relaxed);
    last();
    release();
  }

 private:
  void await_change(std::uint32_t phase);
  bool spin(std::uint32_t phase);
  void sleep(std::uint32_t phase);
  void release();

  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> phase_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<std::int32_t> spin_ns_{kFirstSpinNs};  // spinning time of the next wait in ns

  static constexpr std::int32_t kFirstSpinNs = 50'000, kStepNs = 3'000, kMaxSpinNs = 1'000'000;
};

}  // namespace kvant
