// AnswerGuard measures how the quantized cache changes one completion. A shadow sequence in an unquantized
// cache gets the same prompt and the same tokens. For each position, the guard compares the token that the
// shadow would choose with the completion's token.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/cache.h"
#include "generate/generation.h"
#include "model/sampler.h"
#include "recipe/plan.h"
#include "serve/answer_stream.h"

namespace kvant {

// Returns the recipe of the unquantized cache with which a guard compares the served plan. The cache has the
// plan's transforms if they need no constants, because transforms also round. So only quantized pages and
// approximate attention make a difference.
Recipe guard_recipe(const Plan& served);

class AnswerGuard {
 public:
  // The caller owns the sequence `shadow`. `sampling` holds the completion's options, and `logits` are the
  // shadow's logits after the prompt.
  AnswerGuard(SequenceId shadow, const SamplerOptions& sampling, std::span<const std::int32_t> prompt,
              std::vector<float> logits);

  SequenceId shadow() const { return shadow_; }
  // Takes the shadow's logits after the newest token.
  void set_logits(std::span<const float> logits) { logits_.assign(logits.begin(), logits.end()); }

  // Returns the token that the shadow would choose with the random number of the completion's choice.
  // `logits` are the completion's own logits, with which the shadow's divergence is computed.
  ShadowToken look(std::span<const float> logits);
  // Counts the token that the completion chose. Call count() after look().
  void count(std::int32_t token, const ShadowToken& shadow);
  const GuardTally& tally() const { return tally_; }

 private:
  SequenceId shadow_;
  // The sampler draws as often as the completion's sampler, so both use the same random numbers.
  std::unique_ptr<Sampler> sampler_;
  std::vector<float> logits_;
  GuardTally tally_;
};

}  // namespace kvant
