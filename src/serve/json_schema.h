// JSON schemas as grammars of answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// The rules (GBNF) of the JSON values that the schema describes. An error: it is no schema, or says something
// that a grammar can't hold an answer to; where names it in messages.
Result<std::string> schema_grammar(const nlohmann::ordered_json& schema, const std::string& where);

// The same of a schema that has been written anew (held_schema.h).
Result<std::string> held_schema_grammar(nlohmann::ordered_json held, const std::string& where);

}  // namespace kvant
