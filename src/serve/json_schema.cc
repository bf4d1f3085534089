#include "serve/json_schema.h"

#include <fmt/format.h>
#include <json-schema-to-grammar.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string_view>

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

// Parts of a schema, each counted as often as it becomes rules: a list of types repeats what stands beside
// it.
constexpr std::int64_t kMaxSchemaParts = 4096;
constexpr int kMaxReferences = 256;  // what makes rules calls itself from one to the next

// Of what grammars can't hold an answer to, all that JSON Schema has. They are refused where they ask for
// something.
constexpr std::array<std::string_view, 17> kNotHeld = {"not",
                                                       "if",
                                                       "then",
                                                       "else",
                                                       "dependentSchemas",
                                                       "dependentRequired",
                                                       "patternProperties",
                                                       "propertyNames",
                                                       "unevaluatedProperties",
                                                       "unevaluatedItems",
                                                       "contains",
                                                       "minContains",
                                                       "maxContains",
                                                       "uniqueItems",
                                                       "multipleOf",
                                                       "minProperties",
                                                       "maxProperties"};
constexpr std::array<std::string_view, 4> kBounds = {"minimum", "maximum", "exclusiveMinimum",
                                                     "exclusiveMaximum"};

class SchemaCheck {
 public:
  explicit SchemaCheck(const std::string& where) : where_(where) {}

  // times: how often this part becomes rules.
  void check(const Json& schema, std::int64_t times) {
    if (!schema.is_object()) return fail("has a part that is no object: " + schema.dump().substr(0, 40));
    parts_ += times;
    if (parts_ > kMaxSchemaParts)
      return fail(fmt::format("has more than {} parts, lists of types multiplied", kMaxSchemaParts));
    if (schema.contains("$ref") && ++references_ > kMaxReferences)
      return fail(fmt::format("has more than {} references", kMaxReferences));
    check_keywords(schema);
    if (const auto types = schema.find("type"); types != schema.end() && types->is_array())
      times *= std::max<std::int64_t>(1, std::ssize(*types));
    for (const auto& [key, value] : schema.items()) {
      if (key == "properties" || key == "$defs" || key == "definitions") {
        for (const auto& [name, part] : value.items()) check(part, times);
      } else if (key == "anyOf" || key == "oneOf" || key == "allOf" || key == "prefixItems" ||
                 (key == "items" && value.is_array())) {
        for (const Json& part : value) check(part, times);
      } else if (key == "items" || (key == "additionalProperties" && value.is_object())) {
        check(value, times);
      }
    }
  }

  const Status& status() const { return status_; }

 private:
  void fail(const std::string& what) {
    if (status_.ok()) status_ = error("'{}' {}", where_, what);
  }

  void not_held(const std::string& keyword) {
    fail(fmt::format("has '{}', which an answer can't be held to: leave it out", keyword));
  }

  void check_keywords(const Json& schema) {
    for (const std::string_view keyword : kNotHeld) {
      const auto found = schema.find(keyword);
      if (found != schema.end() && *found != false && *found != 0) not_held(std::string(keyword));
    }
    const auto type = schema.find("type");
    const bool is_number = type != schema.end() && type->is_string() && *type == "number";
    for (const std::string_view bound : kBounds) {
      if (is_number && schema.contains(bound)) not_held(std::string(bound) + "' of a 'number");
    }
    for (const char* choice : {"anyOf", "oneOf", "$ref"}) {
      if (schema.contains(choice) && schema.contains("properties"))
        fail(fmt::format("has 'properties' beside '{}', of which an answer can be held to one only", choice));
    }
    check_required(schema);
    if (schema.contains("prefixItems") && schema.contains("items")) not_held("items' beside 'prefixItems");
    const auto pattern = schema.find("pattern");
    if (pattern == schema.end()) return;
    if (!pattern->is_string()) return fail("has a 'pattern' that is no text");
    const auto& text = pattern->get_ref<const std::string&>();
    if (!text.starts_with('^') || !text.ends_with('$') || text.size() < 2) {
      fail(fmt::format("has the pattern '{}': an answer can be held to patterns from ^ to $ only", text));
    }
    check_pattern(text);
    if (schema.contains("minLength") || schema.contains("maxLength"))
      fail("has a length beside a 'pattern', of which an answer can be held to one only");
  }

  // Of a pattern that it has no rules for the library makes any text.
  void check_pattern(const std::string& pattern) {
    if (!status_.ok()) return;
    try {
      const std::string alone = json_schema_to_grammar(
          common_json::parse(Json{{"type", "string"}, {"pattern", pattern}}.dump()), /*force_gbnf=*/true);
      if (alone.find("root ::= string\n") == std::string::npos) return;
    } catch (const std::exception&) {  // it is no pattern
    }
    fail(fmt::format("has the pattern '{}', which an answer can't be held to", pattern));
  }

  void check_required(const Json& schema) {
    const auto required = schema.find("required");
    if (required == schema.end() || !required->is_array()) return;
    const auto properties = schema.find("properties");
    for (const Json& name : *required) {
      if (!name.is_string() || properties == schema.end() || !properties->is_object() ||
          !properties->contains(name.get<std::string>()))
        fail("requires a property that it doesn't describe: " + name.dump());
    }
  }

  const std::string& where_;
  std::int64_t parts_ = 0;
  int references_ = 0;
  Status status_;
};

}  // namespace

Status check_schema(const Json& schema, const std::string& where) {
  SchemaCheck check(where);
  check.check(schema, 1);
  return check.status();
}

Result<std::string> schema_grammar(const Json& schema, const std::string& where) {
  KVANT_RETURN_IF_ERROR(check_schema(schema, where));
  try {
    return json_schema_to_grammar(common_json::parse(schema.dump()), /*force_gbnf=*/true);
  } catch (const std::exception& e) {
    std::string why = e.what();
    std::ranges::replace(why, '\n', ' ');
    return error("'{}' can't be made a grammar: {}", where, why);
  }
}

}  // namespace kvant
