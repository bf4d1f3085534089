// What requests of all APIs that generate have: how tokens are drawn, and what is shown of them.
#pragma once

#include "serve/api_request.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

// Reads the model's name, `stream`, sampling, `guard`, `skip_special_tokens` and the stop texts, whose
// parameter is called `stops`. What is wrong becomes the error of `fields`.
GenerationRequest read_request_options(JsonFields& fields, const char* stops, const Tokenizer& tokenizer,
                                       const ApiLimits& limits, ApiRequest& request);

// Whose turn it is goes round by this: OpenAI's names for a client's own user.
std::string read_user(JsonFields& fields);

}  // namespace kvant
