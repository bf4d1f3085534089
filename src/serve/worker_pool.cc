#include "serve/worker_pool.h"

#include <exception>
#include <utility>

#include "base/check.h"

namespace kvant {

WorkerPool::WorkerPool(std::size_t max_threads) : max_threads_(max_threads) {
  KVANT_CHECK(max_threads > 0, "a pool without threads runs no task");
  // The first thread starts here, because run() must not fail if the system has no further thread.
  threads_.emplace_back([this] { work(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::run(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    // A woken thread still counts as waiting until it takes its task, and that task still counts as well.
    if (tasks_.size() > n_waiting_ && threads_.size() < max_threads_) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::exception&) {
        // There is no further thread or no memory for one, so the task waits for one of the pool's threads.
      }
    }
  }
  changed_.notify_one();
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++n_waiting_;
    changed_.wait(lock, [this] { return !tasks_.empty() || ending_; });
    --n_waiting_;
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what the task holds is freed before the next task may need it
    lock.lock();
  }
}

}  // namespace kvant
