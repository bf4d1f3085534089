// AnswerGuard: what the cache changes in one answer. A shadow of it, a sequence in an unquantized cache, gets
// the same prompt and the tokens of the answer; what it would have gone on with is compared with what has
// come.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache.h"
#include "generate/generation.h"
#include "model/sampler.h"
#include "serve/answer_stream.h"

namespace kvant {

class AnswerGuard {
 public:
  // shadow: its sequence, which is the caller's. sampling: the answer's. logits: the shadow's after the
  // prompt.
  AnswerGuard(SequenceId shadow, const SamplerOptions& sampling, std::span<const std::int32_t> prompt,
              std::vector<float> logits);

  SequenceId shadow() const { return shadow_; }
  // The shadow's, of the newest token.
  void set_logits(std::span<const float> logits) { logits_.assign(logits.begin(), logits.end()); }

  // What the shadow goes on with, by the same draw, where the answer has these logits.
  ShadowToken look(std::span<const float> logits);
  // What the answer has gone on with, after look().
  void count(std::int32_t token, const ShadowToken& shadow);
  const GuardTally& tally() const { return tally_; }

 private:
  SequenceId shadow_;
  std::unique_ptr<Sampler> sampler_;  // draws as often as the answer's
  std::vector<float> logits_;
  GuardTally tally_;
};

}  // namespace kvant
