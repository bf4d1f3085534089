// ServeLoop: the thread that runs a scheduler, and the way to it from other threads. Where two recipes are
// compared, each has a scheduler with a cache of its own, and they take the engine's steps in turn.
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
  // compared: another recipe on the same engine; null: there is none.
  explicit ServeLoop(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Scheduler> compared = nullptr);
  ~ServeLoop();  // ends
  ServeLoop(const ServeLoop&) = delete;
  ServeLoop& operator=(const ServeLoop&) = delete;

  // Thread-safe. All wait for the end of the step that runs.
  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream);
  // All prompts of a client's request: of one recipe, each with its stream. They count as one in the queue.
  // Refused: the streams of those that were taken before are to be cancelled.
  std::optional<Refusal> submit(std::vector<GenerationRequest> prompts,
                                const std::vector<std::shared_ptr<AnswerStream>>& streams);
  // recipe: 0, or 1 for the one that is compared.
  SchedulerStatus status(int recipe = 0);
  CacheView cache_view(int recipe = 0);
  // Calls it between two steps, on the thread of the scheduler, with the first one. False: that has ended.
  bool ask(const std::function<void(Scheduler&)>& question);
  const SchedulerOptions& options(int recipe = 0) const { return options_[recipe]; }

  // From now on requests are refused; those that were taken go on.
  void refuse_requests() { refuses_ = true; }
  bool refuses_requests() const { return refuses_; }
  // Whether nothing waits or runs.
  bool idle() const { return idle_; }
  // Ends after the step that runs: what has not been answered fails. Nothing, if it has ended.
  void end();

 private:
  void run();
  bool has_work() const;
  void step();
  bool waits_for_disk() const;
  bool between_steps(std::function<void()> action);  // false: it has ended

  std::vector<SchedulerOptions> options_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;  // used by the thread alone
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> actions_;
  bool ending_ = false;
  bool disk_news_ = false;
  std::atomic<bool> refuses_{false}, idle_{true};
  std::thread thread_;
};

}  // namespace kvant
