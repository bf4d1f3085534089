#include "model/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/grammar.h"

namespace kvant {

struct Sampler::Candidates {
  std::vector<llama_token_data> tokens;
};

Sampler::Sampler(llama_sampler* chain) : chain_(chain), candidates_(std::make_unique<Candidates>()) {}
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

  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  if (o.temperature == 0) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
  } else {
    if (o.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(o.top_k));
    if (o.top_p < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p(o.top_p, 1));
    if (o.min_p > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p(o.min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(o.temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(o.seed));
  }
  return std::unique_ptr<Sampler>(new Sampler(chain));
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

std::int32_t Sampler::pick(std::span<const float> logits) {
  return draw(candidates(logits));
}

// Asking about one token is quick, about all of a vocabulary it takes milliseconds.
std::int32_t Sampler::pick(std::span<const float> logits, const Grammar& grammar) {
  const std::int32_t token = pick(logits);
  if (grammar.allows(token)) return token;
  llama_token_data_array left = candidates(logits);
  grammar.mask(left);
  const auto end = std::remove_if(left.data, left.data + left.size,
                                  [](const llama_token_data& t) { return std::isinf(t.logit); });
  left.size = end - left.data;
  return left.size == 0 ? -1 : draw(left);
}

}  // namespace kvant
