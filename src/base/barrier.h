// Barrier: where the threads of a team wait for each other.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvant {

// A thread that waits spins for a short time, then sleeps until it is woken. On an idle machine nearly all
// waits end while spinning. Where other programs want the cores, too, the thread that is waited for may not
// be running: each wait that ends in sleep halves the time that the next ones spin, so that it gets the core
// soon. (Yielding instead puts the thread behind everything else that is ready to run: many times slower on a
// busy machine.)
class Barrier {
 public:
  // Returns when n_threads threads have called it. The last one to come runs `last` before any of them goes
  // on.
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
  std::atomic<std::int32_t> spin_ns_{kMaxSpinNs};  // how long the next wait spins

  static constexpr std::int32_t kMaxSpinNs = 50'000;
};

}  // namespace kvant
