#include "serve/scheduler.h"

#include <algorithm>

#include "cache/slab_memory.h"
#include "generate/prompt_steps.h"

namespace kvant {
namespace {

// The cache allocates slabs. All pages of a slab have the same size, and each size may leave a slab half
// empty. This much memory may therefore be unusable.
constexpr std::int64_t kPartlyUsedBytes = 32 * static_cast<std::int64_t>(kSlabBytes);
// A step on a device verifies at most this many draft tokens of all completions, because more rows cost more
// time than they save.
constexpr int kMostDeviceDrafts = 64;

}  // namespace

double Scheduler::mebibytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::int64_t Scheduler::memory_for(std::int64_t sequence_bytes) {
  return sequence_bytes + kPartlyUsedBytes;
}

std::int64_t Scheduler::memory_for(const SchedulerOptions& options, int n_seqs, std::int64_t sequence_bytes) {
  return memory_for(sequence_bytes + (options.step_bytes ? options.step_bytes(n_seqs) : 0));
}

std::int64_t Scheduler::sequences_that_fit(const SchedulerOptions& options) {
  const std::int64_t one = options.sequence_bytes(options.context);
  std::int64_t fit = 0;
  for (std::int64_t more = 1 << 30; more > 0; more /= 2) {
    const std::int64_t n = fit + more;
    if (n <= options.memory / one && memory_for(options, static_cast<int>(n), n * one) <= options.memory)
      fit = n;
  }
  return fit;
}

Result<std::unique_ptr<Scheduler>> Scheduler::make(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                                   SchedulerOptions options,
                                                   std::shared_ptr<const SessionFolder> sessions) {
  KVANT_CHECK(options.context > 1 && options.parallel > 0 && options.queue >= 0 &&
                  options.prompt_step >= kMinPromptStep && options.lone_prompt_step >= kMinPromptStep,
              "a scheduler that can't run anything");
  if (sequences_that_fit(options) == 0) {
    return error(
        "a cache of {:.0f} MiB is too small for one sequence of {} tokens, which needs {:.0f} MiB: give more "
        "memory, a smaller context or a recipe with fewer bits",
        mebibytes(options.memory), options.context,
        mebibytes(memory_for(options, 1, options.sequence_bytes(options.context))));
  }
  return std::unique_ptr<Scheduler>(
      new Scheduler(engine, backend, std::move(plan), std::move(options), std::move(sessions)));
}

Scheduler::Scheduler(Engine& engine, AttentionBackend& backend, PlacedPlan plan, SchedulerOptions options,
                     std::shared_ptr<const SessionFolder> sessions)
    : engine_(engine),
      backend_(backend),
      options_(std::move(options)),
      on_device_(plan.on_device()),
      batch_(on_device_ ? options_.parallel : engine.independent_sequences()),
      most_rows_(on_device_ ? batch_ + std::min(options_.most_drafted * options_.parallel, kMostDeviceDrafts)
                            : batch_),
      pace_(options_.prompt_step, options_.answer_pause, options_.lone_prompt_step),
      cache_(std::move(plan), options_.memory),
      shadows_(options_.shadow_plan == nullptr
                   ? nullptr
                   : std::make_unique<Cache>(options_.shadow_plan, options_.shadow_memory)),
      prefixes_(cache_, options_.memory, prefix_disk()),
      sessions_(sessions == nullptr
                    ? nullptr
                    : std::make_unique<SessionStore>(cache_, engine.tokenizer(), std::move(sessions))),
      grammar_vocabulary_(Grammar::vocabulary(engine.tokenizer())),
      logits_(most_rows_ * engine.n_vocab()) {}

std::unique_ptr<PrefixDisk> Scheduler::prefix_disk() {
  if (options_.prefix_folder == nullptr) return nullptr;
  return std::make_unique<PrefixDisk>(cache_, options_.prefix_folder, options_.prefix_disk,
                                      cuts_exactly(cache_.plan()));
}

Scheduler::~Scheduler() {
  for (Job& job : jobs_) job.stream->fail(error("the server is shutting down"));
  queue_.for_each([](const Job& job) { job.stream->fail(error("the server is shutting down")); });
  (void)finish_sessions();
}

void Scheduler::step(bool others_wait) {
  ++counters_.steps;
  progress_ = false;
  shortage_ = {};
  drop_cancelled();
  admit();
  advance_sessions();
  advance_prefixes();
  if (on_device_) {
    decode_and_read(others_wait);
  } else {
    decode(running_rows());
    read_prompts(others_wait);
  }
  std::erase_if(readers_, [](const Job* job) { return job->state != JobState::reading; });
  waits_for_disk_ =
      !progress_ && (prefixes_.waits_for_disk() || (sessions_ != nullptr && sessions_->waits_for_disk()));
  // A session that is being written frees memory soon, so the scheduler waits for it.
  const bool writes = sessions_ != nullptr && sessions_->is_writing();
  if (!progress_ && !waits_for_disk_ && !writes) end_without_progress();
  drop_cancelled();
}

// The scheduler calls this when no request can go on. Admission counts the most bytes that a sequence takes,
// but partly used slabs may take more, so memory can still run short. If a session is being read from disk,
// the session gives up its memory. Otherwise, the newest request fails.
void Scheduler::end_without_progress() {
  if (shortage_.message.empty()) return;
  if (sessions_ != nullptr && !sessions_->reading_name().empty())
    return sessions_->give_up_reading(shortage_);
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    if (job->state != JobState::done) return answer_failure(*job, shortage_);
  }
}

void Scheduler::answer_failure(Job& job, const Error& failure, bool is_of_request) {
  free_sequences(job);
  ++counters_.failed;
  job.stream->fail(failure, is_of_request);
}

// Frees memory. Kept prefixes go first, because prefill can restore them. The prefix that is being read from
// disk is the next to go. After that, sessions except `needed` go to the disk.
Room Scheduler::make_room(const std::string& needed) {
  if (prefixes_.drop_oldest() || prefixes_.give_up_reading()) return Room::made;
  return sessions_ == nullptr ? Room::none : sessions_->make_room(needed);
}

// Runs the action and makes room until the action finds enough memory. If a session must first be written to
// free its memory, the function returns the error of the action. The caller then tries again in a later step.
Status Scheduler::with_room(const std::function<Status()>& action, const std::string& needed) {
  Status done = action();
  while (!done.ok() && done.error().is_shortage && make_room(needed) == Room::made) done = action();
  return done;
}

// Runs the action like with_room(), but waits for sessions to be written. The function is for actions that
// cannot be tried again in a later step.
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

// Once half of the memory is used or promised, kept prefixes are written to disk.
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

// Returns whether all rows and parts use the same LongRoPE factors, which one step of the engine requires.
bool Scheduler::agree_on_rope(std::span<const Row> rows, std::span<const PromptPart> parts) {
  std::vector<bool> kinds;
  for (const Row& row : rows) kinds.push_back(row.job->short_rope);
  for (const PromptPart& part : parts) kinds.push_back(part.job->short_rope);
  return std::ranges::adjacent_find(kinds, std::not_equal_to<>()) == kinds.end();
}

// Runs completions and prompts in one step of the engine. If the step fails, each completion and prompt is
// tried alone, so a failure affects only its own request.
void Scheduler::decode_and_read(bool others_wait) {
  const std::vector<Row> rows = running_rows();
  const std::vector<PromptPart> parts = next_parts(others_wait);
  if (rows.empty() && parts.empty()) return;
  if (agree_on_rope(rows, parts)) {
    if (parts.empty()) draft(rows);
    if (run_together(rows, parts).ok()) return;
  }
  decode(rows);
  for (const PromptPart& part : parts) read_part(part);
}

// Runs rows and parts in one step. logits_ gets the logits of the rows, followed by the logits of the parts
// that end a prompt or want probabilities.
Status Scheduler::run_together(std::span<const Row> rows, std::span<const PromptPart> parts) {
  std::vector<std::vector<std::int32_t>> tokens;  // the inputs point into these vectors
  std::vector<EngineInput> inputs;
  int n_decoded = 0;
  bool ends_page = false;
  for (const Row& row : rows) {
    const Answer& answer = *row.answer;
    std::vector<std::int32_t>& of_row = tokens.emplace_back(1, answer.generation->token());
    of_row.insert(of_row.end(), answer.draft.begin(), answer.draft.end());
    inputs.push_back({.sequence = answer.sequence, .tokens = of_row, .short_rope = row.job->short_rope});
    n_decoded += static_cast<int>(of_row.size());
    ends_page = ends_page || (cache_.length(answer.sequence) + std::ssize(of_row)) % kPageTokens == 0;
  }
  int n_read = shadow_reading_.n_tokens, n_logit_rows = n_decoded;
  for (const PromptPart& part : parts) {
    const auto of_part =
        std::span<const std::int32_t>(part.job->reading()).subspan(part.job->n_read, part.n_tokens);
    inputs.push_back({.sequence = part.job->sequence,
                      .tokens = of_part,
                      .is_prompt = true,
                      .first_logits = part.n_tokens - part.n_logits,
                      .short_rope = part.job->short_rope});
    n_read += part.n_tokens;
    n_logit_rows += part.n_logits;
  }
  const std::size_t n_vocab = engine_.n_vocab();
  logits_.resize(std::max(logits_.size(), n_logit_rows * n_vocab));
  const auto start = std::chrono::steady_clock::now();
  KVANT_RETURN_IF_ERROR(decode_shadows(rows));
  const auto decoding = std::chrono::steady_clock::now();
  KVANT_RETURN_IF_ERROR(run(inputs, n_logit_rows));
  const auto end = std::chrono::steady_clock::now();
  const std::chrono::duration<double> taken = end - start, decoded = end - decoding;
  if (!rows.empty() && n_read > 0) pace_.add(n_read, taken.count() + shadow_reading_.seconds);
  // A step that completes a page also seals it, so its time is not typical.
  if (parts.empty() && !ends_page) speculation_.add(n_decoded, decoded.count());
  for (const Row& row : rows) {
    row.answer->tokens.push_back(row.answer->generation->token());
    row.answer->unverified = static_cast<int>(row.answer->draft.size());
  }
  auto logits = std::span<const float>(logits_);
  for (const Row& row : rows) logits = take_tokens(row, logits);
  for (const PromptPart& part : parts) {
    end_part(part, logits.first(part.n_logits * n_vocab));
    logits = logits.subspan(part.n_logits * n_vocab);
  }
  return {};
}

Status Scheduler::run(std::span<const EngineInput> inputs, int n_logit_rows) {
  return with_room([&] {
    return engine_.step(cache_, backend_, inputs, {logits_.data(), n_logit_rows, engine_.n_vocab()});
  });
}

}  // namespace kvant
