// Accepts and removes requests.
#include <algorithm>
#include <utility>

#include "serve/scheduler.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLongestRetry = 60;  // seconds

Refusal wrong(Error why, std::string parameter = {}) {
  return {.message = std::move(why.message), .parameter = std::move(parameter)};
}

}  // namespace

std::int64_t Scheduler::most_bytes(const GenerationRequest& request) const {
  const int length = static_cast<int>(request.prompt.size()) + request.generation.max_tokens;
  return request.n_answers * options_.sequence_bytes(length);
}

std::optional<Refusal> Scheduler::match_session(GenerationRequest& request) {
  if (request.session.empty()) return std::nullopt;
  if (sessions_ == nullptr)
    return wrong(error("this server keeps no sessions: start it with --sessions DIR"), "session");
  if (request.n_answers > 1)
    return wrong(
        error("a session continues with one completion, but the request asks for {}", request.n_answers),
        "n");
  return sessions_->match(request);
}

std::optional<Refusal> Scheduler::submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream) {
  KVANT_CHECK(request.n_answers > 0, "a request for no answer");
  const auto refuse = [this](Refusal refusal) {
    ++counters_.refused;
    return refusal;
  };
  if (request.prompt.empty()) return refuse(wrong(error("the prompt is empty")));
  if (auto refusal = match_session(request)) return refuse(std::move(*refusal));
  const int n_prompt = static_cast<int>(request.prompt.size());
  if (n_prompt >= options_.context) {
    Refusal too_long =
        wrong(error("the prompt has {} tokens, which leaves no room for a completion in a context of {}: "
                    "shorten it, or start the server with a larger -c",
                    n_prompt, options_.context));
    too_long.reason = Refusal::Reason::too_long;
    too_long.prompt_tokens = n_prompt;
    too_long.context = options_.context;
    return refuse(std::move(too_long));
  }
  if (request.n_answers > options_.parallel) {
    return refuse(
        wrong(error("'n' is {}, but this server generates at most {} completions of a prompt: give a smaller "
                    "'n', or start the server with --parallel {}",
                    request.n_answers, options_.parallel, request.n_answers),
              "n"));
  }
  if (const auto sampler = Sampler::make(request.sampling); !sampler.ok())
    return refuse(wrong(sampler.error()));
  if (request.embeds && engine_.n_embd() == 0)
    return refuse(wrong(error("embeddings are computed on the CPU only: start the server without --device")));
  if (request.guard && shadows_ == nullptr)
    return refuse(wrong(error("this server has no guard: start it with --guard"), "guard"));
  if (request.guard && request.n_answers > 1)
    return refuse(
        wrong(error("a guard supports one completion, but the request asks for {}", request.n_answers), "n"));
  if (request.guard && request.grammar != nullptr)
    return refuse(
        wrong(error("a guard does not support grammars, formats and tools: leave out the guard, or the "
                    "format and tools")));
  int& max_tokens = request.generation.max_tokens;
  const int room = options_.context - n_prompt;
  max_tokens = max_tokens < 0 ? room : std::min(max_tokens, room);
  const std::int64_t bytes = most_bytes(request);
  if (const std::int64_t needed = memory_for(options_, request.n_answers, bytes); needed > options_.memory) {
    return refuse(
        wrong(error("{} completions of up to {} tokens need up to {:.0f} MiB, but the cache has {:.0f} MiB: "
                    "ask for fewer, or give max_tokens",
                    request.n_answers, max_tokens, mebibytes(needed), mebibytes(options_.memory))));
  }
  Job job;
  if (request.guard) job.shadow_bytes = options_.shadow_bytes(n_prompt + max_tokens);
  if (memory_for(job.shadow_bytes) > options_.shadow_memory && request.guard) {
    return refuse(
        wrong(error("the guard of a completion of up to {} tokens needs up to {:.0f} MiB, but has {:.0f} "
                    "MiB: give max_tokens, or leave out the guard",
                    max_tokens, mebibytes(job.shadow_bytes), mebibytes(options_.shadow_memory))));
  }
  job.id = next_id_++;
  job.request = std::move(request);
  job.stream = std::move(stream);
  job.start = Clock::now();
  job.bytes = bytes;
  job.usage.prompt = n_prompt;
  job.short_rope = starts_short(job.request);
  const bool must_wait = !queue_.empty() || !has_room(job);
  if (const int waiting = queue_.clients_requests();
      must_wait && !job.request.follows && waiting >= options_.queue) {
    const int patience = static_cast<int>(counters_.request.mean() * waiting / options_.parallel);
    return refuse({Refusal::Reason::busy,
                   waiting > 0 ? fmt::format("{} requests already wait: try again later", waiting)
                               : "the server is busy and lets no request wait (--queue 0): try again later",
                   std::clamp(patience, 1, kLongestRetry)});
  }
  if (!job.request.session.empty()) sessions_->begin(job.request.session);
  queue_.push(std::move(job));
  admit();
  return std::nullopt;
}

// Returns whether the sequence begins with LongRoPE's factors for short sequences. A session never does,
// because later requests can make it longer. Another sequence does if it stays short, or if its tokens can be
// read again when it grows. Reading again requires that the request has a single completion, no guard, and no
// probabilities of the prompt.
bool Scheduler::starts_short(const GenerationRequest& request) const {
  const int most = engine_.short_rope_context(), n_prompt = static_cast<int>(request.prompt.size());
  if (most == 0 || n_prompt >= most || !request.session.empty()) return false;
  return n_prompt + request.generation.max_tokens <= most ||
         (request.n_answers == 1 && !request.guard && !request.wants_prompt_probabilities());
}

// Makes the job read all its tokens again as a prompt, with LongRoPE's factors for long sequences. The
// completion waits meanwhile.
void Scheduler::leave_short_rope(Job& job) {
  Answer& answer = job.answers.front();
  job.again = job.request.prompt;
  job.again.insert(job.again.end(), answer.tokens.begin(), answer.tokens.end());
  job.again.push_back(answer.generation->token());
  cache_.free(std::exchange(answer.sequence, -1));
  job.short_rope = false;
  job.has_sequence = false;
  job.n_read = 0;
  job.state = JobState::reading;
  readers_.push_back(&job);
}

void Scheduler::drop_cancelled() {
  queue_.remove_if([this](const Job& job) {
    if (!job.stream->is_cancelled()) return false;
    if (!job.request.session.empty()) sessions_->end(job.request.session);
    ++counters_.cancelled;
    return true;
  });
  for (Job& job : jobs_) {
    if (job.state == JobState::done || !job.stream->is_cancelled()) continue;
    ++counters_.cancelled;
    free_sequences(job);
  }
  std::erase_if(readers_, [](const Job* job) { return job->state == JobState::done; });
  jobs_.remove_if([](const Job& job) { return job.state == JobState::done; });
}

bool Scheduler::has_room(const Job& job) const {
  const int n_answers = running_ + job.request.n_answers;
  return n_answers <= options_.parallel &&
         memory_for(options_, n_answers, promised_ + job.bytes) <= options_.memory &&
         (!job.request.guard || memory_for(shadows_promised_ + job.shadow_bytes) <= options_.shadow_memory);
}

void Scheduler::admit() {
  while (!queue_.empty() && has_room(queue_.front())) {
    Job& job = jobs_.emplace_back(queue_.pop());
    job.state = JobState::reading;
    readers_.push_back(&job);
    running_ += job.request.n_answers;
    promised_ += job.bytes;
    shadows_promised_ += job.shadow_bytes;
    if (!job.request.guard) continue;
    job.shadow = shadows_->add();
    job.usage.guard.emplace();
  }
}

void Scheduler::free_sequences(Job& job) {
  if (job.state == JobState::reading && job.has_sequence) cache_.free(job.sequence);
  for (const Answer& answer : job.answers) cache_.free(answer.sequence);
  if (job.request.guard) shadows_->free(job.shadow);
  if (!job.request.session.empty()) sessions_->end(job.request.session);
  job.state = JobState::done;
  running_ -= job.request.n_answers;
  promised_ -= job.bytes;
  shadows_promised_ -= job.shadow_bytes;
}

void Scheduler::close(Job& job) {
  free_sequences(job);
  ++counters_.finished;
  counters_.request.add(Clock::now() - job.start);
  job.stream->close(job.usage);
}

}  // namespace kvant
