// Whether a value is one that a JSON schema describes: for the values that a schema lists (enum, const),
// which are kept where all that stands beside the list holds as well.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace kvant {

// root: of the document that references lead into. Nothing: it can't be told, because of a keyword or an
// expression that nobody here can read, or because references go round.
std::optional<bool> schema_holds(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value,
                                 const nlohmann::ordered_json& root);

// Equal as JSON: 1 is 1.0, and the order of members says nothing.
bool same_value(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

// The part of the document that a reference of its own (#, #/a/b~1c) leads to; null: there is none.
const nlohmann::ordered_json* schema_part(const nlohmann::ordered_json& root, const std::string& reference);

// Characters of a text, as JSON Schema counts them.
std::int64_t character_count(const std::string& text);

}  // namespace kvant
