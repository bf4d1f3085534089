// Turns JSON schemas into GBNF grammars for completions. llama.cpp's converter does the last step, after
// hold_schema() has rewritten the schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// Returns the grammar (GBNF) of the JSON values that a schema allows. Returns an error, which names `where`,
// if `schema` is not a schema or has a constraint that a grammar cannot enforce.
Result<std::string> schema_grammar(const nlohmann::ordered_json& schema, const std::string& where);

// Returns the grammar of a schema that hold_schema() has already rewritten (held_schema.h).
Result<std::string> held_schema_grammar(nlohmann::ordered_json held, const std::string& where);

}  // namespace kvant
