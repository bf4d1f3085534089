// Generates completions, from the prompt's last token to the end. In each step, a completion gets one token
// and the draft tokens that were right.
#include <algorithm>
#include <ctime>
#include <utility>

#include "cache/rewindable_tokens.h"
#include "generate/ngram_draft.h"
#include "model/finite_logits.h"
#include "serve/scheduler.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the processor time of the current thread, in seconds.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

// Starts the completions of a prompt. The first completion takes the prompt's sequence, and all other
// completions take forks. `logits` are the logits after the prompt's last token.
Status Scheduler::start_answers(Job& job, std::span<const float> logits) {
  const int n = job.request.n_answers;
  job.request.clone_grammar();
  // The checkpoint lets keep_session() return to the prompt. Only a lack of memory can prevent the
  // checkpoint. The session then keeps all tokens.
  if (cache_.plan().geometry.is_recurrent() && !job.request.session.empty())
    (void)cache_.checkpoint(job.sequence);
  job.state = JobState::generating;
  for (int i = 0; i < n; ++i) {
    SamplerOptions sampling = job.request.sampling;
    sampling.seed += static_cast<std::uint32_t>(i);
    auto sampler = Sampler::make(sampling);
    KVANT_CHECK(sampler.ok(), "a sampler that was refused too late");
    (*sampler)->begin(job.request.prompt);
    SequenceId sequence = job.sequence;
    if (i > 0) {
      KVANT_RETURN_IF_ERROR(with_room_now([&]() -> Status {
        const Result<SequenceId> fork = cache_.fork(job.sequence);
        if (!fork.ok()) return fork.error();
        sequence = *fork;
        return {};
      }));
    }
    auto generation = std::make_unique<Generation>(
        engine_.tokenizer(), **sampler, job.request.generation,
        job.request.grammar == nullptr ? nullptr : std::move(job.request.answer_grammars[i]));
    Answer& answer = job.answers.emplace_back();
    answer.sequence = sequence;
    answer.sampler = std::move(*sampler);
    answer.generation = std::move(generation);
    if (drafts_for(job)) answer.drafter = new_drafter(job.request);
    if (job.request.guard)
      answer.guard = std::make_unique<AnswerGuard>(job.shadow, sampling, job.request.prompt,
                                                   std::move(job.shadow_logits));
  }
  if (job.request.echo) start_echo(job);
  if (job.request.generation.max_tokens == 0) {
    for (int i = 0; i < n; ++i) job.stream->write({.answer = i, .end = GenerationEnd::length});
    if (!job.request.session.empty()) keep_session(job, job.answers.front());
    close(job);
    return {};
  }
  for (int i = 0; i < n && job.state != JobState::done; ++i) take_token({&job, &job.answers[i], i}, logits);
  return {};
}

// Resumes the completion after its sequence was read again with other LongRoPE factors. The newest token was
// also read again, so `logits` predict the next token.
void Scheduler::resume_answer(Job& job, std::span<const float> logits) {
  Answer& answer = job.answers.front();
  answer.sequence = job.sequence;
  answer.tokens.push_back(answer.generation->token());
  job.again.clear();
  job.state = JobState::generating;
  take_token({&job, &answer, 0}, logits);
}

// Begins each completion with the prompt's text. If the request gave only tokens, their pieces make the text.
void Scheduler::start_echo(Job& job) {
  std::string text = job.request.text;
  for (std::size_t i = 0; i < job.request.prompt.size() && job.request.text.empty(); ++i)
    text += engine_.tokenizer().piece(job.request.prompt[i]);
  for (int i = 0; i < job.request.n_answers; ++i)
    job.stream->write({.answer = i, .text = text, .tokens = job.prompt_report, .is_prompt = true});
}

std::vector<Scheduler::Row> Scheduler::running_rows() {
  std::vector<Row> rows;
  for (Job& job : jobs_) {
    if (job.state != JobState::generating) continue;
    if (job.short_rope && job.answers.size() == 1 && job.answers.front().is_running() &&
        cache_.length(job.answers.front().sequence) >= engine_.short_rope_context()) {
      leave_short_rope(job);
      continue;
    }
    for (std::size_t i = 0; i < job.answers.size(); ++i) {
      if (job.answers[i].is_running()) rows.push_back({&job, &job.answers[i], static_cast<int>(i)});
    }
  }
  std::stable_partition(rows.begin(), rows.end(), [](const Row& row) { return row.job->short_rope; });
  return rows;
}

// A request with a guard gets no drafts, because its shadow decodes one token at a time.
bool Scheduler::drafts_for(const Job& job) const {
  return options_.most_drafted > 0 && !job.request.guard && !cache_.plan().geometry.is_recurrent();
}

// Drafts from a request's expected text come from looking up the sequence's end in the text, because a draft
// model does not know the text.
std::unique_ptr<DraftSource> Scheduler::new_drafter(const GenerationRequest& request) const {
  std::unique_ptr<DraftSource> drafter;
  if (options_.draft_model != nullptr && request.expected.empty()) {
    drafter = DraftModel::source(options_.draft_model);
  } else {
    auto look_up = std::make_unique<NgramDraft>();
    if (!request.expected.empty()) look_up->expect(request.expected);
    drafter = std::move(look_up);
  }
  drafter->read(request.prompt);
  return drafter;
}

int Scheduler::most_drafted(const Row& row) const {
  const Answer& answer = *row.answer;
  if (answer.drafter == nullptr) return 0;
  const int left = row.job->request.generation.max_tokens - answer.generation->n_tokens();
  int most = std::min({options_.most_drafted, left - 1, rewindable_tokens(cache_, answer.sequence) - 1});
  if (row.job->short_rope)
    most = std::min(most, engine_.short_rope_context() - cache_.length(answer.sequence) - 1);
  return std::max(0, most);
}

// Chooses the draft tokens that the next step verifies in each completion.
void Scheduler::draft(std::span<const Row> rows) {
  if (options_.most_drafted == 0 || rows.empty()) return;
  std::vector<Draft> drafts;
  drafts.reserve(rows.size());
  for (const Row& row : rows) {
    const int most = most_drafted(row);
    drafts.push_back(most > 0 ? row.answer->drafter->propose(most, speculation_) : Draft());
  }
  const std::vector<int> chosen = speculation_.choose(drafts, static_cast<int>(most_rows_));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].answer->draft = std::move(drafts[i].tokens);
    rows[i].answer->draft.resize(chosen[i]);
  }
}

void Scheduler::drop_drafts(std::span<const Row> rows) {
  for (const Row& row : rows) row.answer->draft.clear();
}

void Scheduler::decode(std::span<const Row> rows) {
  for (std::size_t first = 0; first < rows.size();) {
    auto batch = rows.subspan(first, std::min(batch_, rows.size() - first));
    while (!agree_on_rope(batch, {})) batch = batch.first(batch.size() - 1);
    decode_batch(batch);
    first += batch.size();
  }
}

// If a batch fails, each row is tried alone, so a failure affects only its own request.
void Scheduler::decode_batch(std::span<const Row> rows) {
  draft(rows);
  if (run_together(rows, {}).ok()) return;
  drop_drafts(rows);
  for (const Row& row : rows) {
    if (row.job->state == JobState::done) continue;
    const Status done = run_together({&row, 1}, {});
    if (done.ok()) continue;
    if (done.error().is_shortage) {
      shortage_ = done.error();
    } else {
      answer_failure(*row.job, done.error());
    }
  }
}

// Runs the step's tokens through the shadows of completions with a guard. Shadows run before the completions.
// If the step then fails and is tried again, shadows that have already advanced are skipped.
Status Scheduler::decode_shadows(std::span<const Row> rows) {
  std::vector<AnswerGuard*> guards;
  std::vector<std::int32_t> tokens;
  tokens.reserve(rows.size());  // the inputs point into this vector, so it must not reallocate
  std::vector<EngineInput> inputs;
  for (const Row& row : rows) {
    AnswerGuard* guard = row.answer->guard.get();
    if (guard == nullptr || shadows_->length(guard->shadow()) > cache_.length(row.answer->sequence)) continue;
    guards.push_back(guard);
    tokens.push_back(row.answer->generation->token());
    inputs.push_back(
        {.sequence = guard->shadow(), .tokens = {&tokens.back(), 1}, .short_rope = row.job->short_rope});
  }
  if (guards.empty()) return {};
  const std::size_t n_vocab = engine_.n_vocab();
  KVANT_RETURN_IF_ERROR(engine_.step(*shadows_, backend_, inputs,
                                     {logits_.data(), static_cast<int>(guards.size()), engine_.n_vocab()}));
  for (std::size_t i = 0; i < guards.size(); ++i)
    guards[i]->set_logits(std::span(logits_).subspan(i * n_vocab, n_vocab));
  return {};
}

// Takes tokens for the rows of a completion, as long as the completion's draft is right. Returns the logits
// that follow the completion's rows.
std::span<const float> Scheduler::take_tokens(const Row& row, std::span<const float> logits) {
  const std::size_t n_vocab = engine_.n_vocab();
  Answer& answer = *row.answer;
  const std::vector<std::int32_t> draft = std::exchange(answer.draft, {});
  const auto rest = logits.subspan((1 + draft.size()) * n_vocab);
  if (row.job->state == JobState::done) return rest;
  counters_.drafted_tokens += std::ssize(draft);
  row.job->usage.drafted += static_cast<int>(draft.size());
  for (std::size_t i = 0;; ++i) {
    take_token(row, logits.subspan(i * n_vocab, n_vocab));
    if (row.job->state == JobState::done || !answer.is_running()) return rest;
    const std::int32_t token = answer.generation->token();
    if (i == draft.size() || draft[i] != token) break;
    answer.tokens.push_back(token);
    --answer.unverified;
    ++counters_.accepted_tokens;
    ++row.job->usage.accepted;
  }
  if (const Status done = take_back(answer); !done.ok()) answer_failure(*row.job, done.error());
  return rest;
}

// Removes the tokens of a wrong draft from the sequence.
Status Scheduler::take_back(Answer& answer) {
  if (answer.unverified == 0) return {};
  const int kept = cache_.length(answer.sequence) - std::exchange(answer.unverified, 0);
  return with_room_now([&] { return cache_.truncate(answer.sequence, kept); });
}

// Takes the next token of a completion. The last token of the last completion ends the request.
void Scheduler::take_token(const Row& row, std::span<const float> logits) {
  progress_ = true;
  Answer& answer = *row.answer;
  Job& job = *row.job;
  const Clock::time_point now = Clock::now();
  const bool is_first = answer.generation->n_tokens() == 0;
  const int before = answer.generation->n_tokens();
  if (!are_finite(logits)) return answer_failure(job, unsound_predictions(engine_));
  std::optional<ShadowToken> shadow;
  if (answer.guard) shadow = answer.guard->look(logits);
  const double start = processor_seconds();
  GeneratedText shown = answer.generation->next(logits, shadow);
  const double taken = processor_seconds() - start;
  if (job.request.grammar != nullptr && taken > options_.grammar_seconds) {
    return answer_failure(job,
                          error("the grammar is too ambiguous: a token took {:.1f} s, and all other requests "
                                "waited; use a simpler grammar",
                                taken),
                          /*is_of_request=*/true);
  }
  if (answer.generation->end() == GenerationEnd::lost)
    return answer_failure(
        job, error("the grammar is too ambiguous to follow all its readings: use a simpler grammar"),
        /*is_of_request=*/true);
  if (answer.generation->end() == GenerationEnd::stuck)
    return answer_failure(job, error("the model has no token that the grammar allows next"),
                          /*is_of_request=*/true);
  if (shadow) {
    answer.guard->count(answer.generation->token(), *shadow);
    job.usage.guard = answer.guard->tally();
    ++counters_.guard.tokens;
    counters_.guard.differing += answer.generation->token() != shadow->token ? 1 : 0;
    counters_.guard.kld_sum += shadow->kld;
  }
  (is_first ? counters_.first_token : counters_.next_token).add(now - (is_first ? job.start : answer.newest));
  answer.newest = now;
  const int added = answer.generation->n_tokens() - before;
  job.usage.generated += added;
  counters_.generated_tokens += added;
  if (!shown.text.empty() || !shown.tokens.empty() || !answer.is_running())
    job.stream->write({row.number, std::move(shown.text), std::move(shown.tokens), answer.generation->end(),
                       answer.generation->stop()});
  if (answer.is_running()) {
    if (answer.drafter != nullptr) answer.drafter->generate(answer.generation->token());
    return;
  }
  if (const Status done = take_back(answer); !done.ok()) return answer_failure(job, done.error());
  if (!job.request.session.empty()) keep_session(job, answer);
  cache_.free(answer.sequence);
  if (std::ranges::none_of(job.answers, &Answer::is_running)) close(job);
}

// Gives the sequence to the session, without the tokens of a stop text, because the client does not get that
// text. If the sequence cannot be cut before the stop text, the sequence returns to the prompt's checkpoint.
// Without a checkpoint, the tokens stay.
void Scheduler::keep_session(const Job& job, Answer& answer) {
  const Tokenizer& tokenizer = engine_.tokenizer();
  std::vector<std::int32_t> tokens = job.request.prompt;
  std::string text = job.request.text;
  if (text.empty()) {
    for (const std::int32_t token : tokens) text += tokenizer.piece(token);
  }
  const std::size_t n_prompt = tokens.size(), prompt_bytes = text.size();
  const std::size_t most_bytes = prompt_bytes + answer.generation->shown_bytes();
  for (const std::int32_t token : answer.tokens) {
    const std::string piece = tokenizer.piece(token);
    if (text.size() + piece.size() > most_bytes) {
      if (cache_.truncate(answer.sequence, static_cast<int>(tokens.size())).ok()) break;
      if (cache_.truncate(answer.sequence, static_cast<int>(n_prompt)).ok()) {
        tokens.resize(n_prompt);
        text.resize(prompt_bytes);
        break;
      }
    }
    tokens.push_back(token);
    text += piece;
  }
  // The new checkpoint replaces the prompt's checkpoint, which is no longer needed.
  if (cache_.plan().geometry.is_recurrent()) (void)cache_.checkpoint(answer.sequence);
  sessions_->keep(job.request.session, answer.sequence, std::move(tokens), std::move(text));
  answer.sequence = -1;
}

}  // namespace kvant
