#include "serve/serve_loop.h"

#include <algorithm>
#include <future>

namespace kvant {
namespace {

// While the loop only waits for a disk, the loop checks at this interval whether clients have gone.
constexpr std::chrono::milliseconds kPatienceWithDisk{50};

}  // namespace

ServeLoop::ServeLoop(std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Scheduler> compared) {
  schedulers_.push_back(std::move(scheduler));
  if (compared != nullptr) schedulers_.push_back(std::move(compared));
  for (const auto& each : schedulers_) {
    options_.push_back(each->options());
    each->tell_of_disk([this] {
      const std::lock_guard lock(mutex_);
      disk_news_ = true;
      news_.notify_one();
    });
  }
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

bool ServeLoop::has_work() const {
  return std::ranges::any_of(schedulers_, [](const auto& each) { return !each->idle(); });
}

bool ServeLoop::waits_for_disk() const {
  return std::ranges::all_of(schedulers_,
                             [](const auto& each) { return each->idle() || each->waits_for_disk(); });
}

// Each scheduler takes one step. A long prompt of one recipe therefore delays the completions of both recipes
// equally.
void ServeLoop::step() {
  const bool answers =
      std::ranges::any_of(schedulers_, [](const auto& each) { return each->is_answering(); });
  for (const auto& each : schedulers_) {
    if (!each->idle()) each->step(answers);
  }
}

void ServeLoop::run() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    idle_ = !has_work() && actions_.empty();
    news_.wait(lock, [&] { return ending_ || !actions_.empty() || has_work(); });
    disk_news_ = false;
    std::deque<std::function<void()>> actions = std::move(actions_);
    actions_.clear();
    idle_ = false;
    lock.unlock();
    for (const auto& action : actions) action();
    step();
    lock.lock();
    if (has_work() && waits_for_disk())
      news_.wait_for(lock, kPatienceWithDisk, [&] { return ending_ || !actions_.empty() || disk_news_; });
  }
  // The loop has ended, so no more actions come. Threads that wait for an action must get its result before
  // the schedulers are destroyed.
  const std::deque<std::function<void()>> actions = std::move(actions_);
  lock.unlock();
  for (const auto& action : actions) action();
  for (const auto& each : schedulers_) lost_sessions_ += each->finish_sessions();
  schedulers_.clear();
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
  std::vector<GenerationRequest> one;
  one.push_back(std::move(request));
  return submit(std::move(one), {std::move(stream)});
}

std::optional<Refusal> ServeLoop::submit(std::vector<GenerationRequest> prompts,
                                         const std::vector<std::shared_ptr<AnswerStream>>& streams) {
  const Refusal ending{Refusal::Reason::busy, "the server is shutting down", 1};
  if (refuses_) return ending;
  for (GenerationRequest& prompt : prompts) {
    prompt.follows = &prompt != prompts.data();
    // The scheduler refuses a request with more completions, so the clone of its grammar would be wasted.
    if (prompt.n_answers <= options_[prompt.recipe].parallel) prompt.clone_grammar();
  }
  std::optional<Refusal> refusal;
  const bool asked = between_steps([&] {
    for (std::size_t i = 0; i < prompts.size() && !refusal; ++i) {
      const int recipe = prompts[i].recipe;
      refusal = schedulers_[recipe]->submit(std::move(prompts[i]), streams[i]);
    }
  });
  return asked ? refusal : ending;
}

SchedulerStatus ServeLoop::status(int recipe) {
  SchedulerStatus status;
  between_steps([&] { status = schedulers_[recipe]->status(); });
  return status;
}

CacheView ServeLoop::cache_view(int recipe) {
  CacheView view;
  between_steps([&] { view = view_cache(*schedulers_[recipe]); });
  return view;
}

bool ServeLoop::ask(const std::function<void(Scheduler&)>& question) {
  return between_steps([&] { question(*schedulers_.front()); });
}

}  // namespace kvant
