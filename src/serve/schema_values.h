// Decides whether a value matches a JSON schema. The rewriting of schemas needs that for listed values (enum,
// const), because other keywords next to the list may exclude some of the values.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace kvant {

// Returns whether `value` matches `schema`. References in the schema lead into the document `root`. Returns
// nothing if the result is unknown, because a keyword or expression is not supported or references form a
// loop.
std::optional<bool> schema_holds(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value,
                                 const nlohmann::ordered_json& root);

// Compares two values as JSON Schema does: 1 equals 1.0, and the order of members does not matter.
bool same_value(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

// Returns the part of the document to which a local reference leads, such as # or #/a/b~1c. Returns null if
// there is no part there.
const nlohmann::ordered_json* schema_part(const nlohmann::ordered_json& root, const std::string& reference);

// Counts the Unicode characters of a text, as JSON Schema's lengths do.
std::int64_t character_count(const std::string& text);

}  // namespace kvant
