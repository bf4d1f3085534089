// ServeLoop: the thread that runs a scheduler, and the way to it from other threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "serve/cache_view.h"
#include "serve/scheduler.h"

namespace kvant {

class ServeLoop {
 public:
  explicit ServeLoop(std::unique_ptr<Scheduler> scheduler);
  ~ServeLoop();  // ends
  ServeLoop(const ServeLoop&) = delete;
  ServeLoop& operator=(const ServeLoop&) = delete;

  // Thread-safe. All wait for the end of the step that runs.
  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream);
  SchedulerStatus status();
  CacheView cache_view();
  // Calls it between two steps, on the thread of the scheduler. False: that has ended.
  bool ask(const std::function<void(Scheduler&)>& question);
  const SchedulerOptions& options() const { return options_; }

  // From now on requests are refused; those that were taken go on.
  void refuse_requests() { refuses_ = true; }
  bool refuses_requests() const { return refuses_; }
  // Whether nothing waits or runs.
  bool idle() const { return idle_; }
  // Ends after the step that runs: what has not been answered fails. Nothing, if it has ended.
  void end();

 private:
  void run();
  bool between_steps(std::function<void()> action);  // false: it has ended

  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;  // used by the thread alone
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> actions_;
  bool ending_ = false;
  bool disk_news_ = false;
  std::atomic<bool> refuses_{false}, idle_{true};
  std::thread thread_;
};

}  // namespace kvant
