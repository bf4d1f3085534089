#include "device/cpu/workers.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <new>

#include "base/machine_limits.h"

namespace kvant::device::cpu {
namespace {

// This many multiplications take about a hundred microseconds, which is many times the time of a wake-up.
constexpr std::int64_t kWorkOfTeam = 500'000;

// Workers has the threads of one process. The threads never end, because other threads may still be within a
// call when the process ends. The library stays loaded until then.
struct Workers {
  pid_t process = getpid();
  std::mutex used;
  StandingTeam team{usable_threads()};
};

// Returns null if memory is short.
Workers* workers_of_process() {
  static std::atomic<Workers*> current{nullptr};
  Workers* found = current.load(std::memory_order_acquire);
  if (found != nullptr && found->process == getpid()) return found;
  // If two threads of a new process come here at once, the second thread works alone.
  static std::mutex making;
  const std::unique_lock lock(making, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  found = current.load(std::memory_order_acquire);
  if (found != nullptr && found->process == getpid()) return found;
  try {
    found = std::make_unique<Workers>().release();
  } catch (...) {
    return nullptr;
  }
  current.store(found, std::memory_order_release);
  return found;
}

}  // namespace

void run_on_workers(std::int64_t work, const std::function<void(Team&)>& body) {
  Workers* const workers = work < kWorkOfTeam ? nullptr : workers_of_process();
  if (workers != nullptr) {
    const std::unique_lock lock(workers->used, std::try_to_lock);
    if (lock.owns_lock()) return workers->team.run(body);
  }
  TeamState alone;
  Team team(0, 1, alone);
  body(team);
}

void TeamWork::check() const {
  if (failed_) throw std::bad_alloc();
}

void for_each_task(int n, std::int64_t work, const std::function<void(int)>& body) {
  TeamWork tasks;
  run_on_workers(n > 1 ? work : 0, [&](Team& team) { tasks.for_each(team, n, body); });
  tasks.check();
}

}  // namespace kvant::device::cpu
