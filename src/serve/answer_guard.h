// AnswerGuard measures what the cache changes in one completion. A shadow sequence in an unquantized cache
// gets the same prompt and the same tokens. The guard compares the shadow's next token with the completion's.
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
  // `shadow` is the shadow's sequence, which the caller owns; `logits` are its logits after the prompt.
  // `sampling` is that of the completion.
  AnswerGuard(SequenceId shadow, const SamplerOptions& sampling, std::span<const std::int32_t> prompt,
              std::vector<float> logits);

  SequenceId shadow() const { return shadow_; }
  // Takes the shadow's logits after the newest token.
  void set_logits(std::span<const float> logits) { logits_.assign(logits.begin(), logits.end()); }

  // Returns the shadow's next token, drawn with the same random number, when the completion has these logits.
  ShadowToken look(std::span<const float> logits);
  // Counts the token with which the completion went on. Call it after look().
  void count(std::int32_t token, const ShadowToken& shadow);
  const GuardTally& tally() const { return tally_; }

 private:
  SequenceId shadow_;
  std::unique_ptr<Sampler> sampler_;  // draws as often as the completion's sampler
  std::vector<float> logits_;
  GuardTally tally_;
};

}  // namespace kvant
