#include "serve/json_schema.h"

#include <json-schema-to-grammar.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "serve/held_schema.h"

namespace kvant {
namespace {

// The converter has a rule for property names that a schema does not list. The rule lets a name begin with
// characters that JSON forbids. with_readable_names() removes the forbidden characters from the rule.
std::string with_readable_names(std::string gbnf) {
  constexpr std::string_view kOther = "[^\"", kUnreadable = "\\\\\\x7F\\x00-\\x1F";
  for (std::size_t at = 0; (at = gbnf.find(kOther, at)) != std::string::npos; at += kOther.size())
    gbnf.insert(at + kOther.size(), kUnreadable);
  return gbnf;
}

}  // namespace

Result<std::string> schema_grammar(const nlohmann::ordered_json& schema, const std::string& where) {
  SchemaCost cost;
  auto held = hold_schema(schema, where, SchemaUse::exact, "part-", cost);
  return held.ok() ? held_schema_grammar(std::move(held->schema), where) : held.error();
}

Result<std::string> held_schema_grammar(nlohmann::ordered_json held, const std::string& where) {
  // llama.cpp's converter takes a property with an empty name for the whole schema. The code therefore moves
  // the schema to a named definition and puts a reference in its place.
  const auto properties = held.find("properties");
  if (properties != held.end() && properties->contains("")) {
    nlohmann::ordered_json definitions = held.value("$defs", nlohmann::ordered_json::object());
    held.erase("$defs");
    definitions["whole"] = std::move(held);
    held = {{"$ref", "#/$defs/whole"}, {"$defs", std::move(definitions)}};
  }
  try {
    return with_readable_names(json_schema_to_grammar(common_json::parse(held.dump()), /*force_gbnf=*/true));
  } catch (const std::exception& e) {
    std::string why = e.what();
    std::ranges::replace(why, '\n', ' ');
    return error("'{}' can't be made a grammar: {}", where, why);
  }
}

}  // namespace kvant
