// Decides what happens to parameters of a request that kvant does not have.
//
// Some parameters of the OpenAI, Anthropic, llama.cpp and vLLM APIs change what a completion is. The server
// refuses such a parameter by name, unless the parameter's value has no effect. Every other parameter is a
// hint. The request goes on without the hint, and the server's log names each hint once.
#pragma once

#include "serve/json_fields.h"

namespace kvant {

class ServerLog;

// Applies the rule to the members that were not read. Call this after all members were read. The first
// refused member becomes the error of `fields`. If `log` is null, hints are not logged.
void apply_parameter_rule(JsonFields& fields, ServerLog* log);

}  // namespace kvant
