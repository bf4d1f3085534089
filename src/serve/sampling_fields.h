// How tokens are drawn, as requests of all APIs say it.
#pragma once

#include "model/sampler.h"
#include "model/tokenizer.h"
#include "serve/json_fields.h"

namespace kvant {

// Reads temperature, cuts, penalties, biases and the seed under OpenAI's, llama-server's and vLLM's names.
// Without them tokens are drawn as the model says. What is wrong becomes the error of `fields`. n_vocab: of
// the model.
SamplerOptions read_sampling(JsonFields& fields, const Tokenizer& tokenizer, int n_vocab);

}  // namespace kvant
