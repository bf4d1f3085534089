// Turns JSON schemas into grammars for completions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// Returns the rules (GBNF) of the JSON values that a schema describes. Errors, which name `where`: it is not
// a schema, or makes a demand that a grammar cannot enforce.
Result<std::string> schema_grammar(const nlohmann::ordered_json& schema, const std::string& where);

// Returns the rules of a schema that was already rewritten (held_schema.h).
Result<std::string> held_schema_grammar(nlohmann::ordered_json held, const std::string& where);

}  // namespace kvant
