// Scheduler: continuous batching of many requests on one engine and one cache.
//
// In every step all running answers get one token, and some tokens of prompts are read beside them: a stated
// number at most, or on a device what a stated time has room for (prompt_pace.h), so that a long prompt
// delays the others by a bounded time. Requests wait until a slot and the memory for their longest possible
// answers are free; whose turn it is goes round between clients. What has been admitted is not thrown out:
// for it, kept beginnings of prompts (prefix_cache.h) are dropped.
//
// On the CPU an answer doesn't depend on what runs beside it: prompts are read in steps of their own, and
// answers get their tokens in batches that leave each row its bits (Engine::independent_sequences). On a
// device all answers and what is read of prompts are one step of the engine, whose size decides how products
// are rounded.
//
// An answer may get several tokens in a step: those that its draft (generate/ngram_draft.h) was right about.
// Its tokens are picked from the same logits as without drafts, in the same order.
//
// Not thread-safe: see ServeLoop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "generate/draft_model.h"
#include "generate/speculation_pace.h"
#include "model/engine.h"
#include "serve/histogram.h"
#include "serve/job.h"
#include "serve/prefix_cache.h"
#include "serve/prompt_pace.h"
#include "serve/request_queue.h"
#include "serve/served_sequence.h"
#include "serve/session_store.h"

namespace kvant {

struct SchedulerOptions {
  int context = 0;             // tokens that a prompt and its answer may have together
  int parallel = 8;            // answers that are made at the same time
  int queue = 64;              // requests that may wait
  int prompt_step = 64;        // prompt tokens that a step reads beside running answers
  int lone_prompt_step = 512;  // and where no answer is running
  // On a device: seconds that a step beside answers may take, if > 0. prompt_step is then what the first
  // reads.
  double answer_pause = 0;
  int most_drafted = 0;  // tokens of an answer that a step may verify beside its newest one
  std::shared_ptr<DraftModel> draft_model = nullptr;  // drafts them; null: they are looked up in the sequence
  std::int64_t memory = 0;                            // bytes of the cache; > 0
  // Of the processor, that a token of an answer may take by its grammar: all others wait for it meanwhile.
  double grammar_seconds = 2;
  // Bytes that a sequence takes at most on its way to so many tokens, one by one.
  std::function<std::int64_t(int n_tokens)> sequence_bytes;
  // And that so many sequences may take together beside that within a step; none: nothing.
  std::function<std::int64_t(int n_seqs)> step_bytes;
  // For requests with a guard, beside all that: an unquantized cache.
  PlacedPlan shadow_plan;  // null: none has one
  std::int64_t shadow_memory = 0;
  std::function<std::int64_t(int n_tokens)> shadow_bytes;
  // For beginnings of prompts that memory has no room for.
  std::shared_ptr<const SessionFolder> prefix_folder;  // null: they are dropped
  std::int64_t prefix_disk = 0;                        // bytes of files
};

// Since the start.
struct SchedulerCounters {
  std::int64_t prompt_tokens = 0;  // read
  std::int64_t cached_tokens = 0;  // that need not be
  std::int64_t generated_tokens = 0;
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;
  std::int64_t prefix_hits = 0, prefix_misses = 0;
  std::int64_t finished = 0, cancelled = 0, failed = 0, refused = 0;  // requests
  std::int64_t steps = 0;
  GuardTally guard;                   // of all answers with one
  Histogram first_token, next_token;  // seconds from the request to its first token, and from one to the next
  Histogram request;                  // seconds from a request to its end
};

// One request, for people who look on.
struct RequestStatus {
  std::int64_t id = 0;
  JobState state = JobState::waiting;
  int prompt_tokens = 0;
  int read_tokens = 0;  // of the prompt, cached ones included
  int cached_tokens = 0;
  int generated_tokens = 0;
  int n_answers = 1;
  std::int64_t bytes = 0;  // its pages in the cache; shared ones count fully
  std::optional<GuardTally> guard;
};

struct SchedulerStatus {
  std::vector<RequestStatus> requests;  // running ones first
  SchedulerCounters counters;
  int running_answers = 0;
  std::int64_t cache_bytes = 0;     // reserved from the operating system
  std::int64_t promised_bytes = 0;  // that admitted requests take at most
  std::int64_t prefix_bytes = 0;
  int prefixes = 0;
  std::int64_t prefixes_dropped = 0;
  std::optional<PrefixDiskStatus> prefix_disk;  // none: there is none
  std::int64_t session_bytes = 0;               // of those in memory, shared pages counted fully
  int sessions = 0;
};

class Scheduler {
 public:
  // engine and backend outlive it. sessions: where they are kept; null: none are. An error: the memory
  // doesn't hold one sequence of `context` tokens.
  static Result<std::unique_ptr<Scheduler>> make(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                                 SchedulerOptions options,
                                                 std::shared_ptr<const SessionFolder> sessions = nullptr);
  ~Scheduler();

  // Takes a request, or says why not. All the rest goes to the stream.
  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream);
  // Drops what was cancelled, admits, decodes, reads. beside_answers: of somebody else, who wait for this
  // step. Requires !idle().
  void step(bool beside_answers = false);
  bool idle() const {
    return jobs_.empty() && queue_.empty() && !prefixes_.is_busy() &&
           (sessions_ == nullptr || !sessions_->is_busy());
  }
  bool is_answering() const;  // whether anybody waits for the next token of an answer
  // After a step: whether nothing goes on before a disk has read or written, which is told by another thread.
  bool waits_for_disk() const { return waits_for_disk_; }
  void tell_of_disk(const std::function<void()>& news) {
    prefixes_.tell(news);
    if (sessions_ != nullptr) sessions_->tell(news);
  }

  SchedulerStatus status() const;
  std::vector<ServedSequence> sequences() const;  // all that the cache holds
  const SchedulerOptions& options() const { return options_; }
  const Cache& cache() const { return cache_; }

  SessionStore* sessions() { return sessions_.get(); }  // null: none are kept
  // Another session that goes on from here. Requires that sessions are kept.
  void fork_session(const std::string& name, const std::string& to, SessionDone done);

  // Sequences of `context` tokens that `memory` holds at the same time.
  static std::int64_t sequences_that_fit(const SchedulerOptions& options);
  // Bytes that sequences of these bytes need in a cache of their own.
  static std::int64_t memory_for(std::int64_t sequence_bytes);
  // The same of n_seqs sequences that a scheduler runs.
  static std::int64_t memory_for(const SchedulerOptions& options, int n_seqs, std::int64_t sequence_bytes);

 private:
  // A row of a batch.
  struct Row {
    Job* job;
    Answer* answer;
    int number;  // of the answer
  };
  // The next tokens of a prompt.
  struct PromptPart {
    Job* job;
    int n_tokens;
    bool is_last;
    int n_logits;  // of its last tokens
  };

  Scheduler(Engine& engine, AttentionBackend& backend, PlacedPlan plan, SchedulerOptions options,
            std::shared_ptr<const SessionFolder> sessions);

  static double mebibytes(std::int64_t bytes);
  std::unique_ptr<PrefixDisk> prefix_disk();

  // Requests (scheduler_requests.cc).
  std::optional<Refusal> match_session(GenerationRequest& request);
  std::int64_t most_bytes(const GenerationRequest& request) const;
  void drop_cancelled();
  void admit();
  bool has_room(const Job& job) const;
  void free_sequences(Job& job);
  bool starts_short(const GenerationRequest& request) const;
  void leave_short_rope(Job& job);
  void close(Job& job);

  // Answers (scheduler_answers.cc).
  Status start_answers(Job& job, std::span<const float> logits);
  void resume_answer(Job& job, std::span<const float> logits);
  std::vector<Row> running_rows();
  bool drafts_for(const Job& job) const;
  std::unique_ptr<DraftSource> new_drafter(const GenerationRequest& request) const;
  int most_drafted(const Row& row) const;
  void draft(std::span<const Row> rows);
  static void drop_drafts(std::span<const Row> rows);
  Status take_back(Answer& answer);
  std::span<const float> take_tokens(const Row& row, std::span<const float> logits);
  void decode(std::span<const Row> rows);
  static bool agree_on_rope(std::span<const Row> rows, std::span<const PromptPart> parts);
  void decode_batch(std::span<const Row> rows);
  Status decode_shadows(std::span<const Row> rows);
  void start_echo(Job& job);
  void take_token(const Row& row, std::span<const float> logits);
  void keep_session(const Job& job, Answer& answer);

  // Prompts (scheduler_prompts.cc).
  void read_prompts(bool beside_answers);
  std::vector<PromptPart> next_parts(bool beside_answers);
  std::optional<PromptPart> next_part(Job& job, int wanted);
  int read_part(const PromptPart& part);
  Status read_states(const PromptPart& part);
  void end_embedding(Job& job);
  void end_part(const PromptPart& part, std::span<const float> logits);
  void report_prompt(Job& job, int n_tokens, std::span<const float> logits) const;
  int fail_reading(Job& job, const Error& failure);
  bool has_unread_shadow(const Job& job) const;
  int read_shadow(Job& job, int wanted);
  Status start_reading(Job& job);
  Status start_from_session(Job& job);
  void keep_beginning(Job& job);

  // Steps, and memory for them (scheduler.cc).
  void advance_sessions();
  void advance_prefixes();
  std::optional<SessionError> fork_loaded(const std::string& name, const std::string& to);
  Room make_room(const std::string& needed);
  Status with_room(const std::function<Status()>& action, const std::string& needed = "");
  Status with_room_now(const std::function<Status()>& action);
  void decode_and_read(bool beside_answers);
  Status run_together(std::span<const Row> rows, std::span<const PromptPart> parts);
  Status run(std::span<const EngineInput> inputs, int n_logit_rows);
  void answer_failure(Job& job, const Error& failure, bool is_of_request = false);
  void end_without_progress();

  RequestStatus status_of(const Job& job) const;

  Engine& engine_;
  AttentionBackend& backend_;
  SchedulerOptions options_;
  bool on_device_;
  std::size_t batch_;      // answers that get a token in one step of the engine, at most
  std::size_t most_rows_;  // of answers in one step of the engine, drafted tokens included
  PromptPace pace_;
  SpeculationPace speculation_;
  // What shadows have read of prompts for the step of the engine that comes next: its answers wait for that,
  // too.
  struct {
    int n_tokens = 0;
    double seconds = 0;
  } shadow_reading_;
  Cache cache_;
  std::unique_ptr<Cache> shadows_;     // null: no answer has a guard
  std::int64_t shadows_promised_ = 0;  // bytes
  PrefixCache prefixes_;
  std::unique_ptr<SessionStore> sessions_;                       // null: none are kept
  std::shared_ptr<const GrammarVocabulary> grammar_vocabulary_;  // held for the grammars of requests
  RequestQueue queue_;
  std::list<Job> jobs_;        // admitted, oldest first
  std::list<Job*> readers_;    // of them, those that read their prompt; the first is next
  std::vector<float> logits_;  // [most_rows_, n_vocab] at least
  std::int64_t promised_ = 0;  // bytes that admitted requests take at most
  int running_ = 0;            // their answers
  std::int64_t next_id_ = 1;
  bool progress_ = false;  // in this step: something was computed, or read or written
  bool waits_for_disk_ = false;
  Error shortage_;  // in this step: why something was not
  SchedulerCounters counters_;
};

}  // namespace kvant
