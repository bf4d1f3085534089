// Reads the options that all generating APIs share. The options say how tokens are drawn and how completions
// are sent. Each API then adds its own options.
#pragma once

#include "serve/api_request.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

// Reads the model's name, `stream`, sampling, `guard`, `skip_special_tokens` and the stop texts, whose
// parameter is called `stops`. Mistakes become the error of `fields`.
GenerationRequest read_request_options(JsonFields& fields, const char* stops, const Tokenizer& tokenizer,
                                       const ApiLimits& limits, ApiRequest& request);

// Reads the user's name under OpenAI's parameter names. The queue takes users in turn.
std::string read_user(JsonFields& fields);

}  // namespace kvant
