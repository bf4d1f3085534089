// Rewrites JSON schemas for llama.cpp's converter, which turns them into grammars. If a part of a schema has
// several keywords, the converter uses only one of them. The rewriting therefore merges all keywords of a
// part.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

// SchemaCost adds up the cost of all schemas in a request. The rules of all these schemas form one grammar.
struct SchemaCost {
  std::int64_t parts = 0;           // this many parts of schemas become rules
  std::int64_t optional_pairs = 0;  // the number of pairs of optional properties within one object; each pair
                                    // needs rules
  std::int64_t symbols = 0;         // the approximate number of symbols for names, listed values, patterns
                                    // and counts
};

// With `exact`, every text that matches the new schema also matches the old schema. With `advice`, the new
// schema may drop demands of the old schema, and `loosened` names these demands.
enum class SchemaUse : std::uint8_t { exact, advice };

struct HeldSchema {
  nlohmann::ordered_json schema;
  std::vector<std::string> loosened;  // one sentence for each demand that the grammar does not enforce
};

// Rewrites a schema and adds its cost to `cost`. `where` is the schema's name in messages. The new schema's
// definitions are named `definitions` followed by a number, so schemas of one request need different values
// of `definitions`. With `advice`, the schema must describe an object that holds the arguments of a tool.
// Returns an error if `schema` is not a schema. With `exact`, a demand that no grammar can enforce, or too
// high a cost, is also an error.
Result<HeldSchema> hold_schema(const nlohmann::ordered_json& schema, const std::string& where, SchemaUse use,
                               const std::string& definitions, SchemaCost& cost);

}  // namespace kvant
