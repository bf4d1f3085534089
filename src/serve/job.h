// Job: a request that the scheduler has taken, while it waits and runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cache.h"
#include "generate/draft_source.h"
#include "serve/answer_guard.h"
#include "serve/answer_stream.h"
#include "serve/request.h"

namespace kvant {

// One answer while it is made.
struct Answer {
  SequenceId sequence = 0;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<Generation> generation;
  std::unique_ptr<AnswerGuard> guard;            // null: nobody has asked for one
  std::vector<std::int32_t> tokens;              // that the sequence holds behind the prompt
  std::unique_ptr<DraftSource> drafter;          // of the prompt and these; null: nothing is drafted
  std::vector<std::int32_t> draft;               // that the next step verifies behind the newest token
  int unverified = 0;                            // tokens that the sequence holds behind all these
  std::chrono::steady_clock::time_point newest;  // when its newest token came

  bool is_running() const { return generation->end() == GenerationEnd::none; }
};

enum class JobState : std::uint8_t { waiting, reading, generating, done };

struct Job {
  std::int64_t id = 0;
  GenerationRequest request;
  std::shared_ptr<AnswerStream> stream;
  std::chrono::steady_clock::time_point start;  // when it was submitted
  std::int64_t bytes = 0;                       // of the cache that it takes at most
  JobState state = JobState::waiting;

  // While its prompt is read: the sequence that it is read into (none before the first step), and the lengths
  // at which what has been read is kept for others, ascending.
  bool has_sequence = false;
  std::string prefix_file = {};  // that it waits for, or has waited for, before that; empty: none
  SequenceId sequence = 0;
  int n_read = 0;
  // LongRoPE's factors for short sequences; and, once the sequence has grown beyond them, its tokens, which
  // are read again with the others. Empty: the prompt is read.
  bool short_rope = false;
  std::vector<std::int32_t> again = {};
  const std::vector<std::int32_t>& reading() const { return again.empty() ? request.prompt : again; }
  std::vector<int> keep_at;

  std::vector<ReportedToken> prompt_report = {};  // of the tokens read so far, where they are wanted

  std::vector<double> state_sum = {};  // [n_embd]: of the tokens read so far, for an embedding

  // With a guard: its shadow, which reads the prompt first.
  SequenceId shadow = 0;
  std::int64_t shadow_bytes = 0;  // that it takes at most; 0: there is none
  int n_shadow_read = 0;
  std::vector<float> shadow_logits;  // after the prompt

  std::vector<Answer> answers;  // once the prompt has been read
  TokenUsage usage;
};

}  // namespace kvant
