// Decides whether a value matches a JSON schema. It filters the values that a schema lists (enum, const) by
// the keywords next to the list.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace kvant {

// `root` is the document of the references. Returns nothing if the answer is unknown: a keyword or expression
// is unsupported, or references form a loop.
std::optional<bool> schema_holds(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value,
                                 const nlohmann::ordered_json& root);

// Compares values as JSON: 1 equals 1.0, and the order of members does not matter.
bool same_value(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

// Returns the part of the document to which a local reference (#, #/a/b~1c) leads; null: there is none.
const nlohmann::ordered_json* schema_part(const nlohmann::ordered_json& root, const std::string& reference);

// Counts the characters of a text as JSON Schema does.
std::int64_t character_count(const std::string& text);

}  // namespace kvant
