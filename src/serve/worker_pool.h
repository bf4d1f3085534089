// WorkerPool runs tasks on threads that start when load demands them. httplib's own pool counts a thread that
// has been woken but has not yet run as idle. A burst of tasks then waits until an earlier task ends,
// although further threads may start.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvant {

class WorkerPool {
 public:
  // At most `max_threads` tasks run at the same time. `max_threads` must be at least 1.
  explicit WorkerPool(std::size_t max_threads);
  // Runs the remaining tasks, and ends the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `task` as soon as fewer than `max_threads` tasks run. Any thread may call run().
  void run(std::function<void()> task);

 private:
  void work();

  const std::size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // tasks that no thread has taken yet
  std::size_t n_waiting_ = 0;                // threads that wait for a task; some may already be woken
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvant
