#include "base/barrier.h"

#include <algorithm>
#include <chrono>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace kvant {
namespace {

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls the kernel directly, because std::atomic::wait of GCC's library yields the core several times before
// sleeping. On a busy machine each yield costs a time slice.
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
  word.wait(value);
#endif
}

void wake_all(std::atomic<std::uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
  word.notify_all();
#endif
}

}  // namespace

bool Barrier::spin(std::uint32_t phase) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooksPerClock = 16;
  const auto end = Clock::now() + std::chrono::nanoseconds(spin_ns_.load(std::memory_order_relaxed));
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (phase_.load(std::memory_order_acquire) != phase) return true;
      pause_core();
    }
  } while (Clock::now() < end);
  return false;
}

// Both sides use sequentially consistent operations, so no wake-up is lost. Either the releasing thread sees
// this thread in `sleeping_`, or this thread sees the new phase. The kernel compares the phase once more
// before a thread sleeps.
void Barrier::sleep(std::uint32_t phase) {
  sleeping_.fetch_add(1);
  while (phase_.load() == phase) sleep_while(phase_, phase);
  sleeping_.fetch_sub(1);
}

void Barrier::release() {
  phase_.fetch_add(1);
  if (sleeping_.load() > 0) wake_all(phase_);
}

void Barrier::await_change(std::uint32_t phase) {
  if (spin(phase)) {
    const std::int32_t longer = spin_ns_.load(std::memory_order_relaxed) + kStepNs;
    spin_ns_.store(std::min(longer, kMaxSpinNs), std::memory_order_relaxed);
    return;
  }
  spin_ns_.store(spin_ns_.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
  sleep(phase);
}

}  // namespace kvant
