#include "serve/scheduler.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "generate/prompt_steps.h"

namespace kvant {
namespace {

using Clock = std::chrono::steady_clock;

// Pages of one size come in slabs, and those of every size may leave one half empty.
constexpr std::int64_t kPartlyUsedBytes = 32 * static_cast<std::int64_t>(kSlabBytes);
constexpr int kLongestRetry = 60;  // seconds

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Of the processor, that this thread has had.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

Refusal wrong(Error why) {
  return {Refusal::Reason::wrong, std::move(why.message), 0};
}

}  // namespace

std::int64_t Scheduler::memory_for(std::int64_t sequence_bytes) {
  return sequence_bytes + kPartlyUsedBytes;
}

std::int64_t Scheduler::sequences_that_fit(const SchedulerOptions& options) {
  return std::max<std::int64_t>(0, options.memory - kPartlyUsedBytes) /
         options.sequence_bytes(options.context);
}

Result<std::unique_ptr<Scheduler>> Scheduler::make(Engine& engine, AttentionBackend& backend,
                                                   std::shared_ptr<const Plan> plan, SchedulerOptions options,
                                                   std::shared_ptr<const SessionFolder> sessions) {
  KVANT_CHECK(options.context > 1 && options.parallel > 0 && options.queue >= 0 &&
                  options.prompt_step >= kMinPromptStep && options.lone_prompt_step >= kMinPromptStep,
              "a scheduler that can't run anything");
  if (sequences_that_fit(options) == 0) {
    return error(
        "a cache of {:.0f} MiB doesn't hold one sequence of {} tokens, which takes {:.0f} MiB: give more "
        "memory, "
        "a smaller context or a recipe of fewer bits",
        mebibytes(options.memory), options.context,
        mebibytes(options.sequence_bytes(options.context) + kPartlyUsedBytes));
  }
  return std::unique_ptr<Scheduler>(
      new Scheduler(engine, backend, std::move(plan), std::move(options), std::move(sessions)));
}

Scheduler::Scheduler(Engine& engine, AttentionBackend& backend, std::shared_ptr<const Plan> plan,
                     SchedulerOptions options, std::shared_ptr<const SessionFolder> sessions)
    : engine_(engine),
      backend_(backend),
      options_(std::move(options)),
      batch_(engine.independent_sequences()),
      cache_(std::move(plan), options_.memory),
      shadows_(options_.shadow_plan == nullptr
                   ? nullptr
                   : std::make_unique<Cache>(options_.shadow_plan, options_.shadow_memory)),
      prefixes_(cache_, options_.memory, prefix_disk()),
      sessions_(sessions == nullptr
                    ? nullptr
                    : std::make_unique<SessionStore>(cache_, engine.tokenizer(), std::move(sessions))),
      logits_(batch_ * engine.n_vocab()) {}

std::unique_ptr<PrefixDisk> Scheduler::prefix_disk() {
  if (options_.prefix_folder == nullptr) return nullptr;
  return std::make_unique<PrefixDisk>(cache_, options_.prefix_folder, options_.prefix_disk,
                                      cuts_exactly(cache_.plan()));
}

Scheduler::~Scheduler() {
  for (Job& job : jobs_) job.stream->fail(error("the server ends"));
  queue_.for_each([](const Job& job) { job.stream->fail(error("the server ends")); });
  if (sessions_ != nullptr) sessions_->finish();
}

std::int64_t Scheduler::most_bytes(const GenerationRequest& request) const {
  const int length = static_cast<int>(request.prompt.size()) + request.generation.max_tokens;
  return request.n_answers * options_.sequence_bytes(length);
}

// --- requests come and go ---

std::optional<Refusal> Scheduler::match_session(GenerationRequest& request) {
  if (request.session.empty()) return std::nullopt;
  if (sessions_ == nullptr)
    return wrong(error("this server keeps no sessions: start it with --sessions DIR"));
  if (request.n_answers > 1)
    return wrong(error("a session goes on with one answer, and {} are wanted", request.n_answers));
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
    return refuse(
        wrong(error("the prompt has {} tokens, which leaves no room for an answer in a context of {}",
                    n_prompt, options_.context)));
  }
  if (request.n_answers > options_.parallel) {
    return refuse(wrong(error("{} answers are wanted of a server that makes {} at a time", request.n_answers,
                              options_.parallel)));
  }
  if (const auto sampler = Sampler::make(request.sampling); !sampler.ok())
    return refuse(wrong(sampler.error()));
  if (request.guard && shadows_ == nullptr)
    return refuse(wrong(error("this server compares with no unquantized cache: start it with --guard")));
  if (request.guard && request.n_answers > 1)
    return refuse(wrong(error("a guard is for one answer, and {} are wanted", request.n_answers)));
  if (request.guard && request.grammar != nullptr)
    return refuse(
        wrong(error("a guard compares free answers, and this one is held to a format or to tools: ask "
                    "without the one or the other")));
  int& max_tokens = request.generation.max_tokens;
  if (max_tokens == 0) return refuse(wrong(error("an answer of 0 tokens is wanted: ask for 1 at least")));
  const int room = options_.context - n_prompt;
  max_tokens = max_tokens < 0 ? room : std::min(max_tokens, room);
  const std::int64_t bytes = most_bytes(request);
  if (bytes + kPartlyUsedBytes > options_.memory) {
    return refuse(
        wrong(error("{} answers of up to {} tokens take up to {:.0f} MiB of a cache of {:.0f} MiB: ask "
                    "for fewer, or give max_tokens",
                    request.n_answers, max_tokens, mebibytes(bytes), mebibytes(options_.memory))));
  }
  Job job;
  if (request.guard) job.shadow_bytes = options_.shadow_bytes(n_prompt + max_tokens);
  if (memory_for(job.shadow_bytes) > options_.shadow_memory && request.guard) {
    return refuse(
        wrong(error("the guard of an answer of up to {} tokens takes up to {:.0f} MiB of {:.0f} MiB: "
                    "give max_tokens, or ask without it",
                    max_tokens, mebibytes(job.shadow_bytes), mebibytes(options_.shadow_memory))));
  }
  job.id = next_id_++;
  job.request = std::move(request);
  job.stream = std::move(stream);
  job.start = Clock::now();
  job.bytes = bytes;
  job.usage.prompt = n_prompt;
  const bool must_wait = !queue_.empty() || !has_room(job);
  if (must_wait && queue_.size() >= options_.queue) {
    const int patience = static_cast<int>(counters_.request.mean() * queue_.size() / options_.parallel);
    return refuse({Refusal::Reason::busy,
                   fmt::format("{} requests wait already: try again later", queue_.size()),
                   std::clamp(patience, 1, kLongestRetry)});
  }
  if (!job.request.session.empty()) sessions_->begin(job.request.session);
  queue_.push(std::move(job));
  admit();
  return std::nullopt;
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
  return running_ + job.request.n_answers <= options_.parallel &&
         promised_ + job.bytes + kPartlyUsedBytes <= options_.memory &&
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
  counters_.request.add(seconds(Clock::now() - job.start));
  job.stream->close(job.usage);
}

// --- steps ---

void Scheduler::step(bool beside_answers) {
  ++counters_.steps;
  progress_ = false;
  shortage_ = {};
  drop_cancelled();
  admit();
  advance_sessions();
  advance_prefixes();
  decode();
  read_prompts(beside_answers);
  waits_for_disk_ =
      !progress_ && (prefixes_.waits_for_disk() || (sessions_ != nullptr && sessions_->waits_for_disk()));
  // What is being written will leave its memory to others.
  const bool writes = sessions_ != nullptr && sessions_->is_writing();
  if (!progress_ && !waits_for_disk_ && !writes) end_without_progress();
  drop_cancelled();
}

// Admission counts on what sequences take at most, but slabs that are used in part may take more. What finds
// no room waits for others to end; when nothing can go on, the session that is read from the disk has to make
// room, and then the newest request.
void Scheduler::end_without_progress() {
  if (shortage_.message.empty()) return;
  if (sessions_ != nullptr && !sessions_->reading_name().empty())
    return sessions_->give_up_reading(shortage_);
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    if (job->state != JobState::done) return answer_failure(*job, shortage_);
  }
}

void Scheduler::answer_failure(Job& job, const Error& failure) {
  free_sequences(job);
  ++counters_.failed;
  job.stream->fail(failure);
}

// Beginnings of prompts go first, the one that comes from the disk last: they can be read again. Sessions go
// to the disk, but for the one that is needed.
Room Scheduler::make_room(const std::string& needed) {
  if (prefixes_.drop_oldest() || prefixes_.give_up_reading()) return Room::made;
  return sessions_ == nullptr ? Room::none : sessions_->make_room(needed);
}

// Makes room until the action finds memory. Where that has to be written to the disk before, what is short
// has to be tried again in a later step.
Status Scheduler::with_room(const std::function<Status()>& action, const std::string& needed) {
  Status done = action();
  while (!done.ok() && done.error().is_shortage && make_room(needed) == Room::made) done = action();
  return done;
}

// The same for what can't be tried again.
Status Scheduler::with_room_now(const std::function<Status()>& action) {
  Status done = with_room(action);
  while (!done.ok() && done.error().is_shortage) {
    const Room room = make_room("");
    if (room == Room::none) break;
    if (room == Room::pending) sessions_->finish_writing();
    done = action();
  }
  return done;
}

// --- sessions ---

void Scheduler::advance_sessions() {
  if (sessions_ == nullptr) return;
  const Status done = with_room(
      [&]() -> Status {
        const auto advanced = sessions_->advance();
        if (!advanced.ok()) return advanced.error();
        progress_ = progress_ || *advanced;
        return {};
      },
      sessions_->reading_name());
  if (!done.ok()) shortage_ = done.error();
}

// What is kept goes to the disk from when half of the memory is used or promised.
void Scheduler::advance_prefixes() {
  const bool is_short = cache_.page_bytes_in_use() + promised_ > options_.memory / 2;
  const Status done = with_room([&]() -> Status {
    const auto advanced = prefixes_.advance(is_short);
    if (!advanced.ok()) return advanced.error();
    progress_ = progress_ || *advanced;
    return {};
  });
  if (!done.ok()) shortage_ = done.error();
}

void Scheduler::fork_session(const std::string& name, const std::string& to, SessionDone done) {
  sessions_->load(name, [this, name, to, done = std::move(done)](const std::optional<SessionError>& failure) {
    done(failure ? failure : fork_loaded(name, to));
  });
}

std::optional<SessionError> Scheduler::fork_loaded(const std::string& name, const std::string& to) {
  auto failure = sessions_->fork(name, to);
  while (failure && failure->kind == SessionError::Kind::no_memory && make_room(name) == Room::made)
    failure = sessions_->fork(name, to);
  return failure;
}

Status Scheduler::run(std::span<const EngineInput> inputs, int n_logit_rows) {
  return with_room([&] {
    return engine_.step(cache_, backend_, inputs, {logits_.data(), n_logit_rows, engine_.n_vocab()});
  });
}

// --- decoding ---

void Scheduler::decode() {
  std::vector<Row> rows;
  for (Job& job : jobs_) {
    if (job.state != JobState::generating) continue;
    for (std::size_t i = 0; i < job.answers.size(); ++i) {
      if (job.answers[i].is_running()) rows.push_back({&job, &job.answers[i], static_cast<int>(i)});
    }
  }
  for (std::size_t first = 0; first < rows.size(); first += batch_)
    decode_batch(std::span(rows).subspan(first, std::min(batch_, rows.size() - first)));
}

// What fails as a batch is tried one by one, so that nobody suffers from what runs beside it.
void Scheduler::decode_batch(std::span<const Row> rows) {
  if (run_batch(rows).ok()) return;
  for (const Row& row : rows) {
    if (row.job->state == JobState::done) continue;
    const Status done = run_batch({&row, 1});
    if (done.ok()) continue;
    if (done.error().is_shortage) {
      shortage_ = done.error();
    } else {
      answer_failure(*row.job, done.error());
    }
  }
}

Status Scheduler::run_batch(std::span<const Row> rows) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(rows.size());  // the inputs point into it
  std::vector<EngineInput> inputs;
  for (const Row& row : rows) {
    tokens.push_back(row.answer->generation->token());
    inputs.push_back({row.answer->sequence, {&tokens.back(), 1}, /*is_prompt=*/false});
  }
  KVANT_RETURN_IF_ERROR(decode_shadows(rows));
  KVANT_RETURN_IF_ERROR(run(inputs, static_cast<int>(rows.size())));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].answer->tokens.push_back(tokens[i]);
  const std::size_t n_vocab = engine_.n_vocab();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].job->state != JobState::done)
      take_token(rows[i], std::span(logits_).subspan(i * n_vocab, n_vocab));
  }
  return {};
}

// The same tokens for the shadows of those that have one: all of them first, so that a step which then fails
// is tried again without them.
Status Scheduler::decode_shadows(std::span<const Row> rows) {
  std::vector<AnswerGuard*> guards;
  std::vector<std::int32_t> tokens;
  tokens.reserve(rows.size());  // the inputs point into it
  std::vector<EngineInput> inputs;
  for (const Row& row : rows) {
    AnswerGuard* guard = row.answer->guard.get();
    if (guard == nullptr || shadows_->length(guard->shadow()) > cache_.length(row.answer->sequence)) continue;
    guards.push_back(guard);
    tokens.push_back(row.answer->generation->token());
    inputs.push_back({guard->shadow(), {&tokens.back(), 1}, /*is_prompt=*/false});
  }
  if (guards.empty()) return {};
  const std::size_t n_vocab = engine_.n_vocab();
  KVANT_RETURN_IF_ERROR(engine_.step(*shadows_, backend_, inputs,
                                     {logits_.data(), static_cast<int>(guards.size()), engine_.n_vocab()}));
  for (std::size_t i = 0; i < guards.size(); ++i)
    guards[i]->set_logits(std::span(logits_).subspan(i * n_vocab, n_vocab));
  return {};
}

// The next token of an answer, and with the last one of all its answers the end of the request.
void Scheduler::take_token(const Row& row, std::span<const float> logits) {
  progress_ = true;
  Answer& answer = *row.answer;
  Job& job = *row.job;
  const Clock::time_point now = Clock::now();
  const bool is_first = answer.generation->n_tokens() == 0;
  const int before = answer.generation->n_tokens();
  std::optional<ShadowToken> shadow;
  if (answer.guard) shadow = answer.guard->look(logits);
  const double start = processor_seconds();
  GeneratedText shown = answer.generation->next(logits, shadow);
  const double taken = processor_seconds() - start;
  if (job.request.grammar != nullptr && taken > options_.grammar_seconds) {
    return answer_failure(job, error("the answer's grammar can be read in so many ways that a token took "
                                     "{:.1f} s, for which all others waited: ask with a simpler one",
                                     taken));
  }
  if (answer.generation->end() == GenerationEnd::stuck)
    return answer_failure(job, error("the model has nothing to say that the answer's grammar allows"));
  if (shadow) {
    answer.guard->count(answer.generation->token(), *shadow);
    job.usage.guard = answer.guard->tally();
    ++counters_.guard.tokens;
    counters_.guard.differing += answer.generation->token() != shadow->token ? 1 : 0;
    counters_.guard.kld_sum += shadow->kld;
  }
  (is_first ? counters_.first_token : counters_.next_token)
      .add(seconds(now - (is_first ? job.start : answer.newest)));
  answer.newest = now;
  const int added = answer.generation->n_tokens() - before;
  job.usage.generated += added;
  counters_.generated_tokens += added;
  answer.shown_bytes += shown.text.size();
  if (!shown.text.empty() || !shown.tokens.empty() || !answer.is_running())
    job.stream->write({row.number, std::move(shown.text), std::move(shown.tokens), answer.generation->end(),
                       answer.generation->stop()});
  if (answer.is_running()) return;
  if (!job.request.session.empty()) keep_session(job, answer);
  cache_.free(answer.sequence);
  if (std::ranges::none_of(job.answers, &Answer::is_running)) close(job);
}

// --- reading prompts ---

bool Scheduler::is_answering() const {
  return std::ranges::any_of(jobs_, [](const Job& job) { return job.state == JobState::generating; });
}

// Each reader in turn, until the step's tokens are used up.
void Scheduler::read_prompts(bool beside_answers) {
  int left = beside_answers || is_answering() ? options_.prompt_step : options_.lone_prompt_step;
  for (std::size_t turns = readers_.size(); turns > 0 && left >= kMinPromptStep; --turns) {
    Job& job = *readers_.front();
    readers_.pop_front();
    left -= read_some(job, left);
    if (job.state == JobState::reading) readers_.push_back(&job);
  }
}

// Nothing was read.
int Scheduler::fail_reading(Job& job, const Error& failure) {
  if (failure.is_shortage) {
    shortage_ = failure;
  } else {
    answer_failure(job, failure);
  }
  return 0;
}

// Returns how many tokens were read.
int Scheduler::read_shadow(Job& job, int wanted) {
  const int n = next_prompt_step(job.n_shadow_read, job.usage.prompt, wanted);
  const bool is_last = job.n_shadow_read + n == job.usage.prompt;
  const std::span<const std::int32_t> prompt = job.request.prompt;
  const EngineInput input{job.shadow, prompt.subspan(job.n_shadow_read, n), /*is_prompt=*/true,
                          is_last ? n - 1 : n};
  const Status done =
      engine_.step(*shadows_, backend_, {&input, 1}, {logits_.data(), is_last ? 1 : 0, engine_.n_vocab()});
  if (!done.ok()) return fail_reading(job, done.error());
  progress_ = true;
  job.n_shadow_read += n;
  if (is_last) job.shadow_logits.assign(logits_.begin(), logits_.begin() + engine_.n_vocab());
  return n;
}

// Returns how many tokens were read.
int Scheduler::read_some(Job& job, int wanted) {
  if (job.request.guard && job.n_shadow_read < job.usage.prompt) return read_shadow(job, wanted);
  if (!job.has_sequence) {
    if (const Status begun = start_reading(job); !begun.ok()) return fail_reading(job, begun.error());
    if (!job.has_sequence) return 0;  // its session, or its beginning, is still being read
    job.stream->begin(job.usage);
  }
  const std::span<const std::int32_t> prompt = job.request.prompt;
  const int n_prompt = job.usage.prompt;
  int n = next_prompt_step(job.n_read, n_prompt, wanted);
  if (!job.keep_at.empty()) n = std::min(n, job.keep_at.front() - job.n_read);
  const bool is_last = job.n_read + n == n_prompt;
  const EngineInput input{job.sequence, prompt.subspan(job.n_read, n), /*is_prompt=*/true,
                          is_last ? n - 1 : n};
  if (const Status done = run({&input, 1}, is_last ? 1 : 0); !done.ok())
    return fail_reading(job, done.error());
  progress_ = true;
  job.n_read += n;
  counters_.prompt_tokens += n;
  if (!job.keep_at.empty() && job.n_read == job.keep_at.front()) keep_beginning(job);
  if (is_last) {
    if (const Status begun = start_answers(job); !begun.ok()) answer_failure(job, begun.error());
  }
  return n;
}

// What the session's rows were made of is not all prompts: no beginning of it is kept for others.
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

// From its session, as soon as that is in memory, from the longest beginning that is kept, for which it waits
// once if that is on the disk, or from an empty sequence.
Status Scheduler::start_reading(Job& job) {
  if (job.request.session_tokens > 0) return start_from_session(job);
  if (prefixes_.is_coming(job.prefix_file)) return {};
  PrefixCache::Match match;
  KVANT_RETURN_IF_ERROR(with_room([&]() -> Status {
    auto found = prefixes_.find(job.request.prompt, /*may_wait=*/job.prefix_file.empty());
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

// Kept or not, the request goes on.
void Scheduler::keep_beginning(Job& job) {
  job.keep_at.erase(job.keep_at.begin());
  const auto read = std::span<const std::int32_t>(job.request.prompt).first(job.n_read);
  (void)with_room([&] { return prefixes_.keep(job.sequence, read, job.usage.cached); });
}

// The first takes the prompt's sequence, the others forks of it. logits_ are those of the prompt's last
// token.
Status Scheduler::start_answers(Job& job) {
  const int n = job.request.n_answers;
  job.request.clone_grammar();
  job.state = JobState::generating;
  for (int i = 0; i < n; ++i) {
    SamplerOptions sampling = job.request.sampling;
    sampling.seed += static_cast<std::uint32_t>(i);
    auto sampler = Sampler::make(sampling);
    KVANT_CHECK(sampler.ok(), "a sampler that was refused too late");
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
    if (job.request.guard)
      answer.guard = std::make_unique<AnswerGuard>(job.shadow, sampling, std::move(job.shadow_logits));
  }
  for (int i = 0; i < n && job.state != JobState::done; ++i)
    take_token({&job, &job.answers[i], i}, std::span(logits_).first(engine_.n_vocab()));
  return {};
}

// The sequence passes to the session, without the tokens of a text that has stopped the answer: its client
// doesn't see them. Where a sequence can't be cut there, they stay.
void Scheduler::keep_session(const Job& job, Answer& answer) {
  const Tokenizer& tokenizer = engine_.tokenizer();
  std::vector<std::int32_t> tokens = job.request.prompt;
  std::string text = job.request.text;
  if (text.empty()) {
    for (const std::int32_t token : tokens) text += tokenizer.piece(token);
  }
  const std::size_t most_bytes = text.size() + answer.shown_bytes;
  for (const std::int32_t token : answer.tokens) {
    const std::string piece = tokenizer.piece(token);
    if (text.size() + piece.size() > most_bytes &&
        cache_.truncate(answer.sequence, static_cast<int>(tokens.size())).ok())
      break;
    tokens.push_back(token);
    text += piece;
  }
  sessions_->keep(job.request.session, answer.sequence, std::move(tokens), std::move(text));
  answer.sequence = -1;
}

// --- for people who look on ---

RequestStatus Scheduler::status_of(const Job& job) const {
  RequestStatus status{.id = job.id,
                       .state = job.state,
                       .prompt_tokens = job.usage.prompt,
                       .read_tokens = job.n_read,
                       .cached_tokens = job.usage.cached,
                       .generated_tokens = job.usage.generated,
                       .n_answers = job.request.n_answers,
                       .guard = job.usage.guard};
  if (job.state == JobState::reading && job.has_sequence) status.bytes = cache_.bytes(job.sequence).all();
  for (const Answer& answer : job.answers) status.bytes += cache_.bytes(answer.sequence).all();
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
