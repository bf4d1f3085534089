// Reads the options that requests of all generating APIs share: how tokens are drawn, and what is shown of
// them.
#pragma once

#include "serve/api_request.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

// Reads the model's name, `stream`, sampling, `guard`, `skip_special_tokens` and the stop texts, whose
// parameter is named `stops`. Mistakes become the error of `fields`.
GenerationRequest read_request_options(JsonFields& fields, const char* stops, const Tokenizer& tokenizer,
                                       const ApiLimits& limits, ApiRequest& request);

// Reads OpenAI's names for the user. Users take turns in the queue.
std::string read_user(JsonFields& fields);

}  // namespace kvant
