// Job is a request that the scheduler has accepted. The job exists from submission until its completions have
// ended.
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

// Answer is one completion while it is generated.
struct Answer {
  SequenceId sequence = 0;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<Generation> generation;
  std::unique_ptr<AnswerGuard> guard;  // null if the request has no guard
  std::vector<std::int32_t> tokens;    // the tokens that the sequence holds after the prompt
  // The drafter makes drafts from the prompt and `tokens`. The drafter is null without speculative decoding.
  std::unique_ptr<DraftSource> drafter;
  std::vector<std::int32_t> draft;  // draft tokens after the newest token, which the next step verifies
  int unverified = 0;               // the sequence holds this many unverified tokens after `tokens`
  std::chrono::steady_clock::time_point newest;  // the completion's newest token arrived at this time

  bool is_running() const { return generation->end() == GenerationEnd::none; }
};

enum class JobState : std::uint8_t { waiting, reading, generating, done };

struct Job {
  std::int64_t id = 0;
  GenerationRequest request;
  std::shared_ptr<AnswerStream> stream;
  std::chrono::steady_clock::time_point start;  // the request was submitted at this time
  std::int64_t bytes = 0;                       // the cache of the job takes at most this many bytes
  JobState state = JobState::waiting;

  // The flag is true once `sequence` exists, which is from the first step of prefill on.
  bool has_sequence = false;
  // The job waits for this file of the prefix cache, or has waited for the file. An empty name means no file.
  std::string prefix_file = {};
  // Prefill reads the prompt into this sequence.
  SequenceId sequence = 0;
  int n_read = 0;
  // LongRoPE has one set of factors for short sequences and one set for long sequences. With short_rope, the
  // sequence uses the short set. When the sequence outgrows the short set, all tokens in `again` are read
  // again with the long set. While `again` is empty, prefill reads the prompt.
  bool short_rope = false;
  std::vector<std::int32_t> again = {};
  const std::vector<std::int32_t>& reading() const { return again.empty() ? request.prompt : again; }
  // Lists the lengths, in ascending order, at which the prefix cache keeps a copy of the sequence.
  std::vector<int> keep_at;

  // Holds the probabilities of the prompt tokens read so far, if the request wants them.
  std::vector<ReportedToken> prompt_report = {};

  std::vector<double> state_sum = {};  // [n_embd]; the sum of the hidden states read so far, for an embedding

  // With a guard, the shadow sequence reads the prompt before the job's own sequence does.
  SequenceId shadow = 0;
  std::int64_t shadow_bytes = 0;  // the shadow takes at most this many bytes; 0 without a guard
  int n_shadow_read = 0;
  std::vector<float> shadow_logits;

  std::vector<Answer> answers;  // the list is empty until the prompt has been read
  TokenUsage usage;
};

}  // namespace kvant
