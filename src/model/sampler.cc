#include "model/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/grammar.h"

namespace kvant {

namespace {

// Adds the samplers that precede the final draw, in llama.cpp's order.
void add_cuts(const SamplerOptions& o, llama_sampler* chain) {
  if (o.top_n_sigma > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_n_sigma(o.top_n_sigma));
  if (o.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(o.top_k));
  if (o.typical_p < 1) {
    // A probability that is 0 in F32 has no logarithm.
    constexpr float kSmallest = 1e-30F;
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(kSmallest, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_typical(o.typical_p, 1));
  }
  if (o.top_p < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p(o.top_p, 1));
  if (o.min_p > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p(o.min_p, 1));
  if (o.xtc_probability > 0)
    llama_sampler_chain_add(chain, llama_sampler_init_xtc(o.xtc_probability, o.xtc_threshold, 1, o.seed));
}

llama_sampler* make_chain(const SamplerOptions& o) {
  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  // Logits that are divided by a lower temperature may be infinite in F32, and a draw from infinite logits is
  // undefined.
  constexpr float kLeastTemperature = 1e-30F;
  if (o.temperature < kLeastTemperature) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    return chain;
  }
  add_cuts(o, chain);
  if (o.dynatemp_range > 0) {
    llama_sampler_chain_add(
        chain, llama_sampler_init_temp_ext(o.temperature, o.dynatemp_range, o.dynatemp_exponent));
  } else {
    llama_sampler_chain_add(chain, llama_sampler_init_temp(o.temperature));
  }
  llama_sampler_chain_add(chain, llama_sampler_init_dist(o.seed));
  return chain;
}

}  // namespace

struct Sampler::Candidates {
  std::vector<llama_token_data> tokens;
};

Sampler::Sampler(llama_sampler* chain, const SamplerOptions& options)
    : chain_(chain),
      has_penalties_(options.penalties.any()),
      penalties_(options.penalties),
      bias_(options.bias),
      candidates_(std::make_unique<Candidates>()) {}
Sampler::~Sampler() {
  llama_sampler_free(chain_);
}

Result<std::unique_ptr<Sampler>> Sampler::make(const SamplerOptions& o) {
  if (!(o.temperature >= 0) || std::isinf(o.temperature)) {
    return error("the temperature is {}; it must be at least 0", o.temperature);
  }
  if (o.top_k < 0) return error("top-k is {}; it must be at least 0", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1)) return error("top-p is {}; it must be above 0 and at most 1", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1)) return error("min-p is {}; it must lie between 0 and 1", o.min_p);

  if (!(o.typical_p > 0 && o.typical_p <= 1))
    return error("typical-p is {}; it must be above 0 and at most 1", o.typical_p);
  if (!(o.penalties.repeat > 0) || std::isinf(o.penalties.repeat))
    return error("the repeat penalty is {}; it must be above 0", o.penalties.repeat);
  return std::unique_ptr<Sampler>(new Sampler(make_chain(o), o));
}

// Returns the logits with biases and penalties. If the biases forbid all tokens, they are ignored.
std::span<const float> Sampler::biased(std::span<const float> logits) {
  if (!has_penalties_ && bias_.empty()) return logits;
  logits_.assign(logits.begin(), logits.end());
  if (has_penalties_) penalties_.apply(logits_);
  for (const TokenBias& bias : bias_) logits_[bias.token] += bias.bias;
  const bool leaves_any = std::ranges::any_of(logits_, [](float logit) { return logit > -INFINITY; });
  return leaves_any ? std::span<const float>(logits_) : logits;
}

llama_token_data_array Sampler::candidates(std::span<const float> logits) {
  std::vector<llama_token_data>& tokens = candidates_->tokens;
  tokens.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    tokens[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
  }
  return {tokens.data(), tokens.size(), /*selected=*/-1, /*sorted=*/false};
}

std::int32_t Sampler::draw(llama_token_data_array candidates) {
  llama_sampler_apply(chain_, &candidates);
  KVANT_CHECK(candidates.selected >= 0 && candidates.selected < static_cast<std::int64_t>(candidates.size),
              "nothing sampled");
  return candidates.data[candidates.selected].id;
}

llama_token_data_array Sampler::allowed(std::span<const float> logits, const Grammar& grammar) {
  llama_token_data_array left = candidates(logits);
  grammar.mask(left);
  const auto end = std::remove_if(left.data, left.data + left.size,
                                  [](const llama_token_data& t) { return std::isinf(t.logit); });
  left.size = end - left.data;
  return left;
}

std::int32_t Sampler::pick(std::span<const float> logits) {
  return draw(candidates(biased(logits)));
}

// The sampler picks without the grammar first, because testing one token is fast, while testing the whole
// vocabulary takes milliseconds. If the biases forbid everything that the grammar allows, the grammar wins.
std::int32_t Sampler::pick(std::span<const float> logits, const Grammar& grammar) {
  const std::int32_t token = pick(logits);
  if (grammar.allows(token)) return token;
  llama_token_data_array left = allowed(biased(logits), grammar);
  if (left.size == 0 && !bias_.empty()) left = allowed(logits, grammar);
  return left.size == 0 ? -1 : draw(left);
}

}  // namespace kvant
