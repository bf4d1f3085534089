// JSON schemas as llama.cpp's converter can hold a text to them. Of keywords that stand side by side the
// converter takes one: so the schema is written anew, with what stands side by side worked into one part.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

// What the schemas of one request come to: their rules are one grammar.
struct SchemaCost {
  std::int64_t parts = 0;           // that become rules
  std::int64_t optional_pairs = 0;  // of optional properties of an object: there are rules for each pair
  std::int64_t symbols = 0;         // of names, listed values, patterns and counts, by and large
};

// exact: a text that is held to the new schema holds the old one. advice: so too, but for what `loosened`
// names.
enum class SchemaUse : std::uint8_t { exact, advice };

struct HeldSchema {
  nlohmann::ordered_json schema;
  std::vector<std::string> loosened;  // sentences: what no text is held to
};

// where: what the schema is called in messages. definitions: what the new schema's definitions are called,
// with a number behind; no other schema of a request has that name. Adds to `cost`. Errors: it is no schema;
// with `exact` also where it says something that a text can't be held to, or comes to too much. With `advice`
// a schema describes an object, the arguments of a tool.
Result<HeldSchema> hold_schema(const nlohmann::ordered_json& schema, const std::string& where, SchemaUse use,
                               const std::string& definitions, SchemaCost& cost);

}  // namespace kvant
