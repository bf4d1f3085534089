#include "model/sampler.h"

#include <llama.h>

#include <cmath>
#include <vector>

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

std::int32_t Sampler::pick(std::span<const float> logits) {
  std::vector<llama_token_data>& tokens = candidates_->tokens;
  tokens.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    tokens[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
  }
  llama_token_data_array array{tokens.data(), tokens.size(), /*selected=*/-1, /*sorted=*/false};
  llama_sampler_apply(chain_, &array);
  KVANT_CHECK(array.selected >= 0 && array.selected < static_cast<std::int64_t>(array.size),
              "nothing sampled");
  return array.data[array.selected].id;
}

}  // namespace kvant
