#include "serve/answer_guard.h"

#include "eval/logit_metrics.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

bool needs_constants(const Recipe& recipe, const Geometry& geometry) {
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int kv_head = 0; kv_head < geometry.kv_heads(layer); ++kv_head) {
      for (const Side side : kSides)
        if (!constant_needs(recipe, geometry, layer, kv_head, side).empty()) return true;
    }
  }
  return false;
}

}  // namespace

Recipe guard_recipe(const Plan& served) {
  const Recipe& recipe = served.recipe;
  Recipe plain;
  plain.k.transforms = recipe.k.transforms;
  plain.v.transforms = recipe.v.transforms;
  for (SideOverride override : recipe.overrides) {
    override.recipe.format = "bf16";
    plain.overrides.push_back(std::move(override));
  }
  plain.sink = recipe.sink;
  plain.window = recipe.window;
  plain.prefill = recipe.prefill;
  return needs_constants(plain, served.geometry) ? Recipe{} : plain;
}

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
