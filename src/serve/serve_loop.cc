#include "serve/serve_loop.h"

#include <future>

namespace kvant {

ServeLoop::ServeLoop(std::unique_ptr<Scheduler> scheduler)
    : options_(scheduler->options()), scheduler_(std::move(scheduler)), thread_([this] { run(); }) {}

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
    idle_ = scheduler_->idle() && actions_.empty() && !scheduler_->is_saving();
    news_.wait(lock, [&] { return ending_ || !actions_.empty() || !scheduler_->idle(); });
    std::deque<std::function<void()>> actions = std::move(actions_);
    actions_.clear();
    idle_ = false;
    lock.unlock();
    for (const auto& action : actions) action();
    if (!scheduler_->idle()) scheduler_->step();
    lock.lock();
  }
  // Whoever waits for an action gets its result before the scheduler goes.
  for (const auto& action : actions_) action();
  actions_.clear();
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
