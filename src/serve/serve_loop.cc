#include "serve/serve_loop.h"

#include <future>

namespace kvant {
namespace {

// How soon it is seen that clients have gone while nothing can be done but to wait for a disk.
constexpr std::chrono::milliseconds kPatienceWithDisk{50};

}  // namespace

ServeLoop::ServeLoop(std::unique_ptr<Scheduler> scheduler)
    : options_(scheduler->options()), scheduler_(std::move(scheduler)) {
  scheduler_->tell_of_disk([this] {
    const std::lock_guard lock(mutex_);
    disk_news_ = true;
    news_.notify_one();
  });
  thread_ = std::thread([this] { run(); });
}

ServeLoop::~ServeLoop() {
  end();
}

void ServeLoop::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    news_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void ServeLoop::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    idle_ = scheduler_->idle() && actions_.empty();
    news_.wait(lock, [&] { return ending_ || !actions_.empty() || !scheduler_->idle(); });
    disk_news_ = false;
    std::deque<std::function<void()>> actions = std::move(actions_);
    actions_.clear();
    idle_ = false;
    lock.unlock();
    for (const auto& action : actions) action();
    if (!scheduler_->idle()) scheduler_->step();
    lock.lock();
    if (scheduler_->waits_for_disk())
      news_.wait_for(lock, kPatienceWithDisk, [&] { return ending_ || !actions_.empty() || disk_news_; });
  }
  // Nobody adds more. Whoever waits for an action gets its result before the scheduler goes.
  const std::deque<std::function<void()>> actions = std::move(actions_);
  lock.unlock();
  for (const auto& action : actions) action();
  scheduler_.reset();
  idle_ = true;
}

bool ServeLoop::between_steps(std::function<void()> action) {
  std::promise<void> done;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return false;
    actions_.emplace_back([&] {
      action();
      done.set_value();
    });
    news_.notify_one();
  }
  done.get_future().wait();
  return true;
}

std::optional<Refusal> ServeLoop::submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream) {
  const Refusal ending{Refusal::Reason::busy, "the server is ending", 1};
  if (refuses_) return ending;
  std::optional<Refusal> refusal;
  const bool asked =
      between_steps([&] { refusal = scheduler_->submit(std::move(request), std::move(stream)); });
  return asked ? refusal : ending;
}

SchedulerStatus ServeLoop::status() {
  SchedulerStatus status;
  between_steps([&] { status = scheduler_->status(); });
  return status;
}

CacheView ServeLoop::cache_view() {
  CacheView view;
  between_steps([&] { view = view_cache(*scheduler_); });
  return view;
}

bool ServeLoop::ask(const std::function<void(Scheduler&)>& question) {
  return between_steps([&] { question(*scheduler_); });
}

}  // namespace kvant
