// Reads requests of OpenAI's Responses API (POST /v1/responses) from JSON. The server keeps no state between
// requests, so a request must contain the whole conversation.
#pragma once

#include <nlohmann/json.hpp>

#include "model/tokenizer.h"
#include "serve/api_request.h"

namespace kvant {

// Reads a request and puts the conversation into the model's chat template. Tools that are not functions are
// left out, which the log says once. A mistake becomes an error for the client. parameter_rule.h decides what
// happens to parameters that kvant does not have.
ParsedRequest parse_responses_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                      const ApiLimits& limits = {});

}  // namespace kvant
