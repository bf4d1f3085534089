// Requests of OpenAI's Responses API (POST /v1/responses), from JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "model/tokenizer.h"
#include "serve/api_request.h"

namespace kvant {

// The conversation in the model's chat template. Tools that are no functions are left out, which the log says
// once. What is wrong is refused; parameters that kvant does not have follow one rule (parameter_rule.h).
ParsedRequest parse_responses_request(const nlohmann::ordered_json& body, const Tokenizer& tokenizer,
                                      const ApiLimits& limits = {});

}  // namespace kvant
