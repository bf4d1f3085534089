#include "serve/answer_guard.h"

#include "eval/logit_metrics.h"

namespace kvant {

AnswerGuard::AnswerGuard(SequenceId shadow, const SamplerOptions& sampling,
                         std::span<const std::int32_t> prompt, std::vector<float> logits)
    : shadow_(shadow), sampler_(Sampler::make(sampling).value()), logits_(std::move(logits)) {
  sampler_->begin(prompt);
}

ShadowToken AnswerGuard::look(std::span<const float> logits) {
  const std::int32_t token = sampler_->pick(logits_);
  const int n_vocab = static_cast<int>(logits.size());
  return {token, compare_logits(logits_.data(), logits.data(), n_vocab, token).kld};
}

void AnswerGuard::count(std::int32_t token, const ShadowToken& shadow) {
  sampler_->accept(token);
  ++tally_.tokens;
  tally_.differing += token != shadow.token ? 1 : 0;
  tally_.kld_sum += shadow.kld;
}

}  // namespace kvant
