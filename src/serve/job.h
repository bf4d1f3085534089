// Job is a request that the scheduler has accepted, while it waits and runs.
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

// One completion while it is generated.
struct Answer {
  SequenceId sequence = 0;
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<Generation> generation;
  std::unique_ptr<AnswerGuard> guard;  // null: the request has no guard
  std::vector<std::int32_t> tokens;    // tokens that the sequence holds after the prompt
  std::unique_ptr<DraftSource>
      drafter;                      // drafts from the prompt and these tokens; null: no speculative decoding
  std::vector<std::int32_t> draft;  // tokens that the next step verifies after the newest token
  int unverified = 0;               // tokens that the sequence holds after all of these
  std::chrono::steady_clock::time_point newest;  // arrival of its newest token

  bool is_running() const { return generation->end() == GenerationEnd::none; }
};

enum class JobState : std::uint8_t { waiting, reading, generating, done };

struct Job {
  std::int64_t id = 0;
  GenerationRequest request;
  std::shared_ptr<AnswerStream> stream;
  std::chrono::steady_clock::time_point start;  // time of submission
  std::int64_t bytes = 0;                       // most bytes of cache that it takes
  JobState state = JobState::waiting;

  // During prefill: the sequence that is filled (none before the first step), and the ascending lengths at
  // which the prefix is kept for other requests.
  bool has_sequence = false;
  std::string prefix_file = {};  // the file that it waits for, or has waited for; empty: none
  SequenceId sequence = 0;
  int n_read = 0;
  // Whether the sequence uses LongRoPE's factors for short sequences. When it outgrows them, its tokens are
  // read again with the other factors. An empty list means that the prompt is being read.
  bool short_rope = false;
  std::vector<std::int32_t> again = {};
  const std::vector<std::int32_t>& reading() const { return again.empty() ? request.prompt : again; }
  std::vector<int> keep_at;

  std::vector<ReportedToken> prompt_report = {};  // reports on the prompt tokens read so far, if requested

  std::vector<double> state_sum = {};  // [n_embd]: sum over the tokens read so far, for an embedding

  // With a guard, the shadow reads the prompt first.
  SequenceId shadow = 0;
  std::int64_t shadow_bytes = 0;  // most bytes that it takes; 0: no shadow
  int n_shadow_read = 0;
  std::vector<float> shadow_logits;  // logits after the prompt

  std::vector<Answer> answers;  // filled when the prompt has been read
  TokenUsage usage;
};

}  // namespace kvant
