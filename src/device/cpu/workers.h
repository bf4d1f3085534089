// Runs the library's work on threads of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/team.h"
#include "device/cpu/kernels/byte_kernels.h"

namespace kvant::device::cpu {

// Runs body(team) on the threads of the library, as many as the process may use, and returns when all are
// done. `work` counts multiplications: waking threads for a small call would cost more time than they save.
// The caller works alone if the call is small, or while the threads work for another call. A body throws
// nothing. The threads sleep between calls. A forked process gets threads of its own.
void run_on_workers(std::int64_t work, const std::function<void(Team&)>& body);

// Returns the calling thread's Buffers, which are made for these kernels or, if `kernels` is null, for the
// reference. A thread keeps its buffers from call to call, because new memory costs as much time as a short
// sequence.
template <class Buffers>
Buffers& buffers_of_thread(const kvant::cpu::ByteKernels* kernels) {
  thread_local const kvant::cpu::ByteKernels* made_for = nullptr;
  thread_local std::optional<Buffers> buffers;
  if (!buffers || made_for != kernels) {
    buffers.emplace(kernels);
    made_for = kernels;
  }
  return *buffers;
}

// TeamWork runs the parts of a call on a team, and remembers whether memory was short in one of them.
class TeamWork {
 public:
  // Runs body(i) for each i in [0, n) on one thread of the team each, and then last() on one of them. Each
  // thread of the team calls for_each(). Nothing more runs after a body has thrown.
  template <class Body, class Last>
  void for_each(Team& team, int n, const Body& body, const Last& last) {
    team.for_each(
        n, [&](int i) { attempt([&] { body(i); }); }, [&] { attempt(last); });
  }
  template <class Body>
  void for_each(Team& team, int n, const Body& body) {
    for_each(team, n, body, [] {});
  }
  // Throws std::bad_alloc if a body has thrown.
  void check() const;

 private:
  template <class Body>
  void attempt(const Body& body) {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      body();
    } catch (...) {
      failed_ = true;
    }
  }

  std::atomic<bool> failed_{false};
};

// Runs body(i) for each i in [0, n), and returns when all are done. The call throws std::bad_alloc if a body
// throws.
void for_each_task(int n, std::int64_t work, const std::function<void(int)>& body);

}  // namespace kvant::device::cpu
