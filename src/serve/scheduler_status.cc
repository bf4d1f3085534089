// Reports the scheduler's state to users.
#include <map>

#include "serve/scheduler.h"

namespace kvant {

RequestStatus Scheduler::status_of(const Job& job) const {
  RequestStatus status{.id = job.id,
                       .state = job.state,
                       .prompt_tokens = job.usage.prompt,
                       .read_tokens = job.n_read,
                       .cached_tokens = job.usage.cached,
                       .generated_tokens = job.usage.generated,
                       .n_answers = job.request.n_answers,
                       .guard = job.usage.guard};
  if (job.state == JobState::reading && job.has_sequence)
    status.bytes = cache_.bytes(job.sequence).with_states();
  for (const Answer& answer : job.answers) status.bytes += cache_.bytes(answer.sequence).with_states();
  return status;
}

SchedulerStatus Scheduler::status() const {
  SchedulerStatus status{.counters = counters_,
                         .running_answers = running_,
                         .cache_bytes = cache_.bytes_reserved(),
                         .promised_bytes = promised_,
                         .prefix_bytes = prefixes_.bytes(),
                         .prefixes = prefixes_.size(),
                         .prefixes_dropped = prefixes_.dropped(),
                         .prefix_disk = prefixes_.disk()};
  if (sessions_ != nullptr) {
    status.session_bytes = sessions_->bytes();
    status.sessions = sessions_->in_memory();
  }
  for (const Job& job : jobs_) status.requests.push_back(status_of(job));
  queue_.for_each([&](const Job& job) { status.requests.push_back(status_of(job)); });
  return status;
}

std::vector<ServedSequence> Scheduler::sequences() const {
  std::map<SequenceId, ServedSequence> served;
  for (const Job& job : jobs_) {
    ServedSequence of_job{.request = job.id, .state = job.state, .usage = job.usage};
    if (job.state == JobState::reading && job.has_sequence) served[job.sequence] = of_job;
    for (const Answer& answer : job.answers) {
      of_job.usage.generated = answer.generation->n_tokens();
      served[answer.sequence] = of_job;
      ++of_job.answer;
    }
  }
  if (sessions_ != nullptr) {
    for (auto& [id, name] : sessions_->held()) served[id].session = std::move(name);
  }
  std::vector<ServedSequence> all;
  for (const SequenceId id : cache_.sequences()) {
    ServedSequence& sequence = all.emplace_back(served[id]);
    sequence.id = id;
    sequence.held = view_sequence(cache_, id);
  }
  return all;
}

}  // namespace kvant
