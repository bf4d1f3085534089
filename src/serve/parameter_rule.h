// Decides what happens to parameters of a request that kvant does not have.
//
// A parameter that changes what a completion is, in the OpenAI, Anthropic, llama.cpp or vLLM API, is refused
// by its name, unless its value asks for nothing. Every other parameter is a hint: the request goes on
// without it, and the log of the server names it once.
#pragma once

#include "serve/json_fields.h"

namespace kvant {

class ServerLog;

// Applies the rule to the members that were not read. Call it after all others. The first refused member is
// the error of `fields`. With a null log, hints are not logged.
void apply_parameter_rule(JsonFields& fields, ServerLog* log);

}  // namespace kvant
