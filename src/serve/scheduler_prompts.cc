// Reads prompts. A prompt starts after its kept prefix, or after the tokens that its session holds.
#include <algorithm>
#include <cmath>
#include <utility>

#include "generate/prompt_steps.h"
#include "model/finite_logits.h"
#include "serve/scheduler.h"

namespace kvant {
namespace {

// A step reads at most this many tokens of a prompt whose probabilities are wanted, because each token then
// has logits for the whole vocabulary.
constexpr int kReportedStep = 64;

// Returns the tokens under which the prefix cache keeps a prefix. LongRoPE's short and long factors give
// different keys, so tokens of a short sequence are marked with numbers beyond any vocabulary. `marked` is
// the storage for the marked tokens.
std::span<const std::int32_t> kept_tokens(const Job& job, std::span<const std::int32_t> tokens,
                                          std::vector<std::int32_t>& marked) {
  constexpr std::int32_t kShortRope = 1 << 30;
  if (!job.short_rope) return tokens;
  marked.assign(tokens.begin(), tokens.end());
  for (std::int32_t& token : marked) token |= kShortRope;
  return marked;
}

}  // namespace

bool Scheduler::is_answering() const {
  return std::ranges::any_of(jobs_, [](const Job& job) { return job.state == JobState::generating; });
}

// Lets the jobs that read prompts take turns, until the step's prompt tokens are used up.
void Scheduler::read_prompts(bool others_wait) {
  shadow_reading_ = {};
  int left = others_wait || is_answering() ? pace_.tokens() : options_.lone_prompt_step;
  for (std::size_t turns = readers_.size(); turns > 0 && left >= kMinPromptStep; --turns) {
    Job& job = *readers_.front();
    readers_.splice(readers_.end(), readers_, readers_.begin());
    if (has_unread_shadow(job)) {
      left -= read_shadow(job, left);
    } else if (const auto part = next_part(job, left)) {
      left -= read_part(*part);
    }
  }
}

// Chooses the parts of prompts that one step reads. Each prompt gets an equal share, so short prompts do not
// wait for long prompts.
std::vector<Scheduler::PromptPart> Scheduler::next_parts(bool others_wait) {
  std::vector<PromptPart> parts;
  shadow_reading_ = {};
  int left = others_wait || is_answering() ? pace_.tokens() : options_.lone_prompt_step;
  for (int turns = static_cast<int>(readers_.size()); turns > 0 && left >= kMinPromptStep; --turns) {
    Job& job = *readers_.front();
    readers_.splice(readers_.end(), readers_, readers_.begin());
    const int wanted = std::max(left / turns, kMinPromptStep);
    if (has_unread_shadow(job)) {
      left -= read_shadow(job, wanted);
    } else if (const auto part = next_part(job, wanted)) {
      parts.push_back(*part);
      left -= part->n_tokens;
    }
  }
  return parts;
}

// Handles a failed read and returns 0, the number of tokens read.
int Scheduler::fail_reading(Job& job, const Error& failure) {
  if (failure.is_shortage) {
    shortage_ = failure;
  } else {
    answer_failure(job, failure);
  }
  return 0;
}

// Lets the shadow sequence read the next part of the prompt, of about `wanted` tokens. Returns how many
// tokens were read.
int Scheduler::read_shadow(Job& job, int wanted) {
  const int n = next_prompt_step(job.n_shadow_read, job.usage.prompt, wanted);
  const bool is_last = job.n_shadow_read + n == job.usage.prompt;
  const std::span<const std::int32_t> prompt = job.request.prompt;
  const EngineInput input{.sequence = job.shadow,
                          .tokens = prompt.subspan(job.n_shadow_read, n),
                          .is_prompt = true,
                          .first_logits = is_last ? n - 1 : n,
                          .short_rope = job.short_rope};
  const auto start = std::chrono::steady_clock::now();
  const Status done =
      engine_.step(*shadows_, backend_, {&input, 1}, {logits_.data(), is_last ? 1 : 0, engine_.n_vocab()});
  if (!done.ok()) return fail_reading(job, done.error());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  shadow_reading_.n_tokens += n;
  shadow_reading_.seconds += taken.count();
  progress_ = true;
  job.n_shadow_read += n;
  if (is_last) job.shadow_logits.assign(logits_.begin(), logits_.begin() + engine_.n_vocab());
  return n;
}

bool Scheduler::has_unread_shadow(const Job& job) const {
  return job.request.guard && job.n_shadow_read < job.usage.prompt;
}

// Returns the next part of the job's prompt, of about `wanted` tokens. Returns nothing if the job cannot read
// now.
std::optional<Scheduler::PromptPart> Scheduler::next_part(Job& job, int wanted) {
  if (!job.has_sequence) {
    if (const Status begun = start_reading(job); !begun.ok()) {
      fail_reading(job, begun.error());
      return {};
    }
    if (!job.has_sequence) return {};  // the job's session or prefix is still being loaded
    if (job.again.empty()) job.stream->begin(job.usage);
  }
  const int n_all = static_cast<int>(job.reading().size());
  const bool reports = job.request.wants_prompt_probabilities();
  if (reports) wanted = std::min(wanted, kReportedStep);
  int n = next_prompt_step(job.n_read, n_all, wanted);
  if (!job.keep_at.empty()) n = std::min(n, job.keep_at.front() - job.n_read);
  const bool is_last = job.n_read + n == n_all;
  return PromptPart{&job, n, is_last, reports ? n : static_cast<int>(is_last)};
}

// Reads a part of a prompt in a separate step. Returns how many tokens were read.
int Scheduler::read_part(const PromptPart& part) {
  const Status done = part.job->request.embeds ? read_states(part) : run_together({}, {&part, 1});
  return done.ok() ? part.n_tokens : fail_reading(*part.job, done.error());
}

Status Scheduler::read_states(const PromptPart& part) {
  Job& job = *part.job;
  const auto tokens = std::span<const std::int32_t>(job.request.prompt).subspan(job.n_read, part.n_tokens);
  const int n_embd = engine_.n_embd();
  std::vector<float> states(static_cast<std::size_t>(part.n_tokens) * n_embd);
  KVANT_RETURN_IF_ERROR(with_room([&] {
    return engine_.embed(
        cache_, backend_,
        {.sequence = job.sequence, .tokens = tokens, .is_prompt = true, .short_rope = job.short_rope},
        {states.data(), part.n_tokens, n_embd});
  }));
  job.state_sum.resize(n_embd);
  for (std::size_t i = 0; i < states.size(); ++i) job.state_sum[i % n_embd] += states[i];
  end_part(part, {});
  return {};
}

void Scheduler::end_embedding(Job& job) {
  double squares = 0;
  for (const double x : job.state_sum) squares += x * x;
  if (!std::isfinite(squares)) return answer_failure(job, unsound_predictions(engine_));
  std::vector<float> embedding;
  for (const double x : job.state_sum)
    embedding.push_back(static_cast<float>(squares > 0 ? x / std::sqrt(squares) : 0));
  job.stream->write({.end = GenerationEnd::finished, .embedding = std::move(embedding)});
  close(job);
}

// Adds the probabilities of the prompt's next n_tokens tokens to the report, from logits [n_tokens, n_vocab].
// The first token has no probability.
void Scheduler::report_prompt(Job& job, int n_tokens, std::span<const float> logits) const {
  const std::vector<std::int32_t>& prompt = job.request.prompt;
  std::vector<ReportedToken>& report = job.prompt_report;
  if (report.empty()) report.push_back({.chosen = {prompt.front(), kNoProbability}});
  const std::size_t n_vocab = engine_.n_vocab();
  for (int i = 0; i < n_tokens && report.size() < prompt.size(); ++i)
    report.push_back(reported_token(logits.subspan(i * n_vocab, n_vocab), prompt[report.size()],
                                    job.request.generation.alternatives));
}

// Completes a part that the engine has read. `logits` are the logits of the part.
void Scheduler::end_part(const PromptPart& part, std::span<const float> logits) {
  Job& job = *part.job;
  progress_ = true;
  if (job.request.wants_prompt_probabilities()) report_prompt(job, part.n_tokens, logits);
  job.n_read += part.n_tokens;
  counters_.prompt_tokens += part.n_tokens;
  if (!job.keep_at.empty() && job.n_read == job.keep_at.front()) keep_beginning(job);
  if (!part.is_last) return;
  if (!job.again.empty()) return resume_answer(job, logits.last(engine_.n_vocab()));
  if (job.request.embeds) return end_embedding(job);
  if (const Status begun = start_answers(job, logits.last(engine_.n_vocab())); !begun.ok())
    answer_failure(job, begun.error());
}

// Starts the job with a fork of its session. A session's rows may come from decode, so the prefix cache keeps
// none of them for other prompts.
Status Scheduler::start_from_session(Job& job) {
  const std::string& name = job.request.session;
  KVANT_RETURN_IF_ERROR(with_room(
      [&]() -> Status {
        const auto fork = sessions_->fork_sequence(name);
        if (!fork.ok()) return fork.error();
        job.has_sequence = fork->has_value();
        if (job.has_sequence) job.sequence = **fork;
        return {};
      },
      name));
  if (!job.has_sequence) return {};
  job.n_read = job.usage.cached = job.request.session_tokens;
  counters_.cached_tokens += job.usage.cached;
  return {};
}

// Starts reading a prompt. Reading starts from the session once the session is in memory, from the longest
// kept prefix, or from an empty sequence. The job waits at most once for a prefix on disk.
Status Scheduler::start_reading(Job& job) {
  if (!job.again.empty()) {
    job.sequence = cache_.add();
    job.has_sequence = true;
    return {};
  }
  if (job.request.session_tokens > 0) return start_from_session(job);
  if (prefixes_.is_coming(job.prefix_file)) return {};
  PrefixCache::Match match;
  // The prefix cache keeps neither probabilities nor hidden states. A request that needs either must process
  // its whole prompt.
  const bool must_read_all = job.request.wants_prompt_probabilities() || job.request.embeds;
  KVANT_RETURN_IF_ERROR(with_room([&]() -> Status {
    if (must_read_all) return {};
    std::vector<std::int32_t> marked;
    const auto tokens = kept_tokens(job, job.request.prompt, marked);
    auto found = prefixes_.find(tokens, /*may_wait=*/job.prefix_file.empty());
    if (!found.ok()) return found.error();
    match = std::move(*found);
    return {};
  }));
  if (!match.coming.empty()) {
    job.prefix_file = std::move(match.coming);
    return {};
  }
  ++(match.n_tokens > 0 ? counters_.prefix_hits : counters_.prefix_misses);
  counters_.cached_tokens += match.n_tokens;
  job.sequence = match.n_tokens > 0 ? match.sequence : cache_.add();
  job.has_sequence = true;
  job.n_read = job.usage.cached = match.n_tokens;
  const int whole_pages = job.usage.prompt / kPageTokens * kPageTokens;
  for (const int length : {match.n_common, whole_pages}) {
    if (length > job.n_read && (job.keep_at.empty() || job.keep_at.back() < length))
      job.keep_at.push_back(length);
  }
  return {};
}

// Keeps the prefix that has just been read. The request goes on even if the prefix cannot be kept.
void Scheduler::keep_beginning(Job& job) {
  job.keep_at.erase(job.keep_at.begin());
  const auto read = std::span<const std::int32_t>(job.request.prompt).first(job.n_read);
  std::vector<std::int32_t> marked;
  const auto tokens = kept_tokens(job, read, marked);
  (void)with_room([&] { return prefixes_.keep(job.sequence, tokens, job.usage.cached); });
}

}  // namespace kvant
