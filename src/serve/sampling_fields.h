// Reads how tokens are drawn, for requests of all APIs. OpenAI's, llama-server's and vLLM's names for the
// same option are all understood.
#pragma once

#include "model/sampler.h"
#include "model/tokenizer.h"
#include "serve/json_fields.h"

namespace kvant {

// Reads temperature, cuts, penalties, biases and the seed under OpenAI's, llama-server's and vLLM's names. A
// request without any of them draws from the model's own probabilities. Mistakes become the error of
// `fields`. `n_vocab` is the size of the model's vocabulary.
SamplerOptions read_sampling(JsonFields& fields, const Tokenizer& tokenizer, int n_vocab);

}  // namespace kvant
