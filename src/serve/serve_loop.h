// ServeLoop is the thread that runs a scheduler, and lets other threads reach it. If two recipes are
// compared, each has a scheduler and a cache of its own, and they take turns with the engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "serve/cache_view.h"
#include "serve/scheduler.h"

namespace kvant {

class ServeLoop {
 public:
  // `compared` serves another recipe on the same engine; null: there is none.
  explicit ServeLoop(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Scheduler> compared = nullptr);
  ~ServeLoop();  // ends the loop
  ServeLoop(const ServeLoop&) = delete;
  ServeLoop& operator=(const ServeLoop&) = delete;

  // The following functions are thread-safe. All of them wait for the end of the running step.
  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream);
  // Submits all prompts of a client's request, which share a recipe and count as one in the queue. Each has
  // its own stream. If it is refused, the caller cancels the streams of prompts that were already accepted.
  std::optional<Refusal> submit(std::vector<GenerationRequest> prompts,
                                const std::vector<std::shared_ptr<AnswerStream>>& streams);
  // `recipe` is 0, or 1 for the compared one.
  SchedulerStatus status(int recipe = 0);
  CacheView cache_view(int recipe = 0);
  // Calls `question` between two steps, on the scheduler's thread, with the first scheduler. Returns false if
  // that thread has ended.
  bool ask(const std::function<void(Scheduler&)>& question);
  const SchedulerOptions& options(int recipe = 0) const { return options_[recipe]; }

  // From now on requests are refused. Those that were accepted go on.
  void refuse_requests() { refuses_ = true; }
  bool refuses_requests() const { return refuses_; }
  // Returns whether nothing waits or runs.
  bool idle() const { return idle_; }
  // Ends after the running step; unfinished requests fail. A second call does nothing.
  void end();

 private:
  void run();
  bool has_work() const;
  void step();
  bool waits_for_disk() const;
  bool between_steps(std::function<void()> action);  // false: the loop has ended

  std::vector<SchedulerOptions> options_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;  // only the thread uses them
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> actions_;
  bool ending_ = false;
  bool disk_news_ = false;
  std::atomic<bool> refuses_{false}, idle_{true};
  std::thread thread_;
};

}  // namespace kvant
