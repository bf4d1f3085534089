#include "device/cpu/tasks.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "base/machine_limits.h"
#include "base/team.h"

namespace kvant::device::cpu {
namespace {

constexpr std::int64_t kWorkOfThread =
    500'000;  // about a hundred microseconds, several times a thread's start

}  // namespace

void for_each_task(int n, std::int64_t work, const std::function<void(int)>& body) {
  static const int kMostThreads = usable_threads();
  const auto worth = static_cast<int>(std::min<std::int64_t>(work / kWorkOfThread, kMostThreads));
  const int n_threads = std::max(1, std::min(n, worth));
  WorkCounter counter;
  std::atomic<bool> failed{false};
  const auto run = [&] {
    try {
      for (int i = counter.take(); i < n && !failed; i = counter.take()) body(i);
    } catch (...) {
      failed = true;
    }
  };
  std::vector<std::thread> helpers;
  try {
    helpers.reserve(n_threads - 1);
    for (int i = 1; i < n_threads; ++i) helpers.emplace_back(run);
  } catch (...) {  // The system gives no more threads, and those that there are do the work.
  }
  run();
  for (std::thread& helper : helpers) helper.join();
  if (failed) throw std::bad_alloc();
}

}  // namespace kvant::device::cpu
