// ServeLoop runs a scheduler on a thread of its own, and lets other threads reach the scheduler between
// steps. If two recipes are compared, each recipe has its own scheduler and cache, and the two schedulers use
// the engine in turn.
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
  // `compared` serves a second recipe on the same engine. `compared` is null if there is no second recipe.
  explicit ServeLoop(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Scheduler> compared = nullptr);
  ~ServeLoop();  // ends the loop
  ServeLoop(const ServeLoop&) = delete;
  ServeLoop& operator=(const ServeLoop&) = delete;

  // Any thread may call the functions from submit() to ask(). Each function waits until the running step has
  // ended.
  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream);
  // Submits all prompts of a client's request, which share a recipe and count as one in the queue. Each
  // prompt has its own stream. If a prompt is refused, the caller must cancel the streams of the prompts
  // before it.
  std::optional<Refusal> submit(std::vector<GenerationRequest> prompts,
                                const std::vector<std::shared_ptr<AnswerStream>>& streams);
  // status() and cache_view() describe a scheduler between two steps. `recipe` is 0 for the first recipe and
  // 1 for the compared recipe.
  SchedulerStatus status(int recipe = 0);
  CacheView cache_view(int recipe = 0);
  // Calls `question` with the first scheduler, on the loop's thread between two steps. Returns false if the
  // loop has ended.
  bool ask(const std::function<void(Scheduler&)>& question);
  const SchedulerOptions& options(int recipe = 0) const { return options_[recipe]; }

  // Makes the loop refuse all new requests. Accepted requests go on.
  void refuse_requests() { refuses_ = true; }
  bool refuses_requests() const { return refuses_; }
  // Returns whether no request waits or runs.
  bool idle() const { return idle_; }
  // Ends the loop after the running step. Unfinished requests fail. A second call does nothing.
  void end();
  // Returns how many sessions the end has lost because they could not be written. Call it after end().
  int lost_sessions() const { return lost_sessions_; }

 private:
  void run();
  bool has_work() const;
  void step();
  bool waits_for_disk() const;
  bool between_steps(std::function<void()> action);  // returns false if the loop has ended

  std::vector<SchedulerOptions> options_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;  // only the loop's thread uses the schedulers
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::function<void()>> actions_;
  bool ending_ = false;
  bool disk_news_ = false;
  int lost_sessions_ = 0;
  std::atomic<bool> refuses_{false}, idle_{true};
  std::thread thread_;
};

}  // namespace kvant
