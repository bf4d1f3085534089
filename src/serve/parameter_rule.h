// The rule for parameters of a request that kvant does not have.
//
// A parameter that changes what a completion is, in the OpenAI, Anthropic, llama.cpp or vLLM API, is refused
// by its name, unless its value asks for nothing. Every other parameter is a hint: the request goes on
// without it, and the log of the server names it once.
#pragma once

#include "serve/json_fields.h"

namespace kvant {

class ServerLog;

// Applies the rule to the members that were not read, once all others have been. The first refused one is the
// error of `fields`. log: null: hints are not named.
void apply_parameter_rule(JsonFields& fields, ServerLog* log);

}  // namespace kvant
