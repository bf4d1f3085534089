// Scheduler batches many requests on one engine and one cache (continuous batching).
//
// In every step, each running completion gets at least one token, and some prompt tokens are read. The number
// of prompt tokens is fixed, or on a device follows a time limit (prompt_pace.h). A long prompt delays
// completions only by a bounded time. A request waits until slots and memory for its longest possible
// completions are free, and clients take turns. An admitted request is never suspended. If memory runs short,
// kept prefixes (prefix_cache.h) are dropped.
//
// On the CPU, a completion does not depend on other requests. Prompts have separate steps, and completions
// decode in batches that give each row the same bits as alone (Engine::independent_sequences). On a device,
// completions and prompts share one step, whose size changes how products are rounded.
//
// A completion may get several tokens in one step, if its draft (generate/draft_source.h) was right. Tokens
// are chosen from the same logits, in the same order, as without drafts.
//
// The class is not thread-safe. ServeLoop gives other threads access to a scheduler.
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
  int context = 0;             // a prompt and its completion may have this many tokens together
  int parallel = 8;            // completions that run at the same time
  int queue = 64;              // at most this many requests wait
  int prompt_step = 64;        // prompt tokens that a step reads while completions run
  int lone_prompt_step = 512;  // prompt tokens per step while no completion runs
  // With a cache on a device, a step that reads prompts while completions run should take at most this many
  // seconds. The number of prompt tokens then starts at prompt_step. 0 means no limit.
  double answer_pause = 0;
  int most_drafted = 0;  // a step verifies at most this many draft tokens of a completion
  std::shared_ptr<DraftModel> draft_model = nullptr;  // this model drafts; if null, drafts are looked
                                                      // up in the sequence
  std::int64_t memory = 0;                            // bytes of the cache; must be > 0
  // A completion's grammar may take this many seconds of processor time for one token, because all other
  // completions wait meanwhile.
  double grammar_seconds = 2;
  // Returns the most bytes that a sequence takes while it grows to n_tokens tokens, one by one.
  std::function<std::int64_t(int n_tokens)> sequence_bytes;
  // Returns the additional bytes that n_seqs sequences may take together within a step. An empty function
  // means none.
  std::function<std::int64_t(int n_seqs)> step_bytes;
  // Requests with a guard also need an unquantized cache, which shadow_plan, shadow_memory and shadow_bytes
  // describe.
  PlacedPlan shadow_plan;  // null if guards are not available
  std::int64_t shadow_memory = 0;
  std::function<std::int64_t(int n_tokens)> shadow_bytes;
  // Prefixes that do not fit into memory go to this folder.
  std::shared_ptr<const SessionFolder> prefix_folder;  // null if there is no disk cache
  std::int64_t prefix_disk = 0;                        // bytes; the limit applies to all files together
};

// SchedulerCounters counts events since the scheduler's start.
struct SchedulerCounters {
  std::int64_t prompt_tokens = 0;  // prompt tokens that were read
  std::int64_t cached_tokens = 0;  // prompt tokens from the prefix cache
  std::int64_t generated_tokens = 0;
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;
  std::int64_t prefix_hits = 0, prefix_misses = 0;
  std::int64_t finished = 0, cancelled = 0, failed = 0, refused = 0;  // requests, by their end
  std::int64_t steps = 0;
  GuardTally guard;                   // the sum over all completions with a guard
  Histogram first_token, next_token;  // seconds from the request to its first token, and from one token to
                                      // the next
  Histogram request;                  // seconds from the request to its end
};

// RequestStatus describes one request to users.
struct RequestStatus {
  std::int64_t id = 0;
  JobState state = JobState::waiting;
  int prompt_tokens = 0;
  int read_tokens = 0;  // prompt tokens read so far, with those from the prefix cache
  int cached_tokens = 0;
  int generated_tokens = 0;
  int n_answers = 1;
  std::int64_t bytes = 0;  // bytes of all pages, where shared pages count fully
  std::optional<GuardTally> guard;
};

struct SchedulerStatus {
  std::vector<RequestStatus> requests;  // running requests come first
  SchedulerCounters counters;
  int running_answers = 0;
  std::int64_t cache_bytes = 0;     // bytes that the cache has from the operating system
  std::int64_t promised_bytes = 0;  // the most bytes that admitted requests take
  std::int64_t prefix_bytes = 0;
  int prefixes = 0;
  std::int64_t prefixes_dropped = 0;
  std::optional<PrefixDiskStatus> prefix_disk;  // empty if there is no disk cache
  std::int64_t session_bytes = 0;               // bytes of sessions in memory, where shared pages count fully
  int sessions = 0;
};

class Scheduler {
 public:
  // Makes a scheduler. `engine` and `backend` must outlive the scheduler. `sessions` keeps sessions. A null
  // `sessions` means that sessions are not kept. Returns an error if the memory cannot hold one sequence of
  // `context` tokens.
  static Result<std::unique_ptr<Scheduler>> make(Engine& engine, AttentionBackend& backend, PlacedPlan plan,
                                                 SchedulerOptions options,
                                                 std::shared_ptr<const SessionFolder> sessions = nullptr);
  ~Scheduler();

  // Accepts a request, or returns why the scheduler refuses it. All later results and errors go to the
  // stream.
  std::optional<Refusal> submit(GenerationRequest request, std::shared_ptr<AnswerStream> stream);
  // Runs one step: drops cancelled requests, admits waiting requests, decodes, and reads prompts. With
  // others_wait, completions of another scheduler wait for the step. Do not call step() when idle() is
  // true.
  void step(bool others_wait = false);
  bool idle() const {
    return jobs_.empty() && queue_.empty() && !prefixes_.is_busy() &&
           (sessions_ == nullptr || !sessions_->is_busy());
  }
  bool is_answering() const;  // true if a completion waits for its next token
  // Returns whether the last step could do nothing but wait for a disk. Another thread reports when the disk
  // has finished.
  bool waits_for_disk() const { return waits_for_disk_; }
  void tell_of_disk(const std::function<void()>& news) {
    prefixes_.tell(news);
    if (sessions_ != nullptr) sessions_->tell(news);
  }

  SchedulerStatus status() const;
  std::vector<ServedSequence> sequences() const;  // returns all sequences in the cache
  const SchedulerOptions& options() const { return options_; }
  const Cache& cache() const { return cache_; }

  SessionStore* sessions() { return sessions_.get(); }  // null if sessions are not kept
  // Writes the sessions that are not on disk. Returns how many of them are lost because they can't be
  // written.
  int finish_sessions() { return sessions_ == nullptr ? 0 : sessions_->finish(); }
  // Makes the session `to`, a copy that continues from the present state of `name`. Sessions must be kept.
  void fork_session(const std::string& name, const std::string& to, SessionDone done);

  // Returns how many sequences of `context` tokens fit into `memory` at the same time.
  static std::int64_t sequences_that_fit(const SchedulerOptions& options);
  // Returns the memory that a cache needs to hold sequences of this many bytes.
  static std::int64_t memory_for(std::int64_t sequence_bytes);
  // Returns the memory that a scheduler needs to run n_seqs sequences of sequence_bytes each.
  static std::int64_t memory_for(const SchedulerOptions& options, int n_seqs, std::int64_t sequence_bytes);

 private:
  // Row represents one completion in a batch of decodes.
  struct Row {
    Job* job;
    Answer* answer;
    int number;  // the job's completions are numbered from 0
  };
  // PromptPart is the piece of a prompt that one step reads.
  struct PromptPart {
    Job* job;
    int n_tokens;
    bool is_last;
    int n_logits;  // the last n_logits tokens of the part need logits
  };

  Scheduler(Engine& engine, AttentionBackend& backend, PlacedPlan plan, SchedulerOptions options,
            std::shared_ptr<const SessionFolder> sessions);

  static double mebibytes(std::int64_t bytes);
  std::unique_ptr<PrefixDisk> prefix_disk();

  // The functions from match_session() to close() handle requests (scheduler_requests.cc).
  std::optional<Refusal> match_session(GenerationRequest& request);
  std::int64_t most_bytes(const GenerationRequest& request) const;
  void drop_cancelled();
  void admit();
  bool has_room(const Job& job) const;
  void free_sequences(Job& job);
  bool starts_short(const GenerationRequest& request) const;
  void leave_short_rope(Job& job);
  void close(Job& job);

  // The functions from start_answers() to keep_session() generate completions (scheduler_answers.cc).
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

  // The functions from read_prompts() to keep_beginning() read prompts (scheduler_prompts.cc).
  void read_prompts(bool others_wait);
  std::vector<PromptPart> next_parts(bool others_wait);
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

  // The functions from advance_sessions() to end_without_progress() run steps and find memory for them
  // (scheduler.cc).
  void advance_sessions();
  void advance_prefixes();
  std::optional<SessionError> fork_loaded(const std::string& name, const std::string& to);
  Room make_room(const std::string& needed);
  Status with_room(const std::function<Status()>& action, const std::string& needed = "");
  Status with_room_now(const std::function<Status()>& action);
  void decode_and_read(bool others_wait);
  Status run_together(std::span<const Row> rows, std::span<const PromptPart> parts);
  Status run(std::span<const EngineInput> inputs, int n_logit_rows);
  void answer_failure(Job& job, const Error& failure, bool is_of_request = false);
  void end_without_progress();

  RequestStatus status_of(const Job& job) const;

  Engine& engine_;
  AttentionBackend& backend_;
  SchedulerOptions options_;
  bool on_device_;
  std::size_t batch_;      // one step of the engine decodes at most this many completions
  std::size_t most_rows_;  // one step decodes at most this many rows, draft tokens included
  PromptPace pace_;
  SpeculationPace speculation_;
  // Before a step, shadow sequences read parts of prompts. The step's completions wait for these parts, too,
  // so the time counts.
  struct {
    int n_tokens = 0;
    double seconds = 0;
  } shadow_reading_;
  Cache cache_;
  std::unique_ptr<Cache> shadows_;     // null if guards are not available
  std::int64_t shadows_promised_ = 0;  // bytes
  PrefixCache prefixes_;
  std::unique_ptr<SessionStore> sessions_;                       // null if sessions are not kept
  std::shared_ptr<const GrammarVocabulary> grammar_vocabulary_;  // the pointer keeps the vocabulary alive for
                                                                 // the grammars of requests
  RequestQueue queue_;
  std::list<Job> jobs_;        // the admitted requests, the oldest first
  std::list<Job*> readers_;    // the jobs that read their prompt; the first one is next
  std::vector<float> logits_;  // [most_rows_, n_vocab] or more rows
  std::int64_t promised_ = 0;  // the most bytes that admitted requests take
  int running_ = 0;            // this many completions are running
  std::int64_t next_id_ = 1;
  bool progress_ = false;  // this step has computed, read or written something
  bool waits_for_disk_ = false;
  Error shortage_;  // the newest shortage of memory in this step; without a shortage, the message is empty
  SchedulerCounters counters_;
};

}  // namespace kvant
