// Rewrites JSON schemas into a form to which llama.cpp's converter can hold a text. The converter uses only
// one of several keywords in one place, so all of them are merged into one part.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

// Adds up the cost of all schemas in a request. Their rules are one grammar.
struct SchemaCost {
  std::int64_t parts = 0;           // parts that become rules
  std::int64_t optional_pairs = 0;  // pairs of optional properties in one object; each pair has rules
  std::int64_t symbols = 0;         // approximate number for names, listed values, patterns and counts
};

// With `exact`, a text that matches the new schema also matches the old one. With `advice`, that holds except
// for what `loosened` names.
enum class SchemaUse : std::uint8_t { exact, advice };

struct HeldSchema {
  nlohmann::ordered_json schema;
  std::vector<std::string> loosened;  // one sentence for each demand that is not enforced
};

// Rewrites a schema and adds its cost to `cost`. `where` is the schema's name in messages. `definitions`
// begins the names of the new schema's definitions; a number follows, and no other schema of the request has
// these names. With `advice`, the schema describes an object, the arguments of a tool.
// Errors: it is not a schema; with `exact` also a demand that cannot be enforced, or too high a cost.
Result<HeldSchema> hold_schema(const nlohmann::ordered_json& schema, const std::string& where, SchemaUse use,
                               const std::string& definitions, SchemaCost& cost);

}  // namespace kvant
