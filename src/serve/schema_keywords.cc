#include "serve/schema_keywords.h"

#include <algorithm>
#include <array>
#include <map>

namespace kvant::schema {

unsigned type_named(const std::string& name) {
  static const std::map<std::string, unsigned> kTypes = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? 0 : found->second;
}

unsigned types_of_keyword(std::string_view key) {
  constexpr std::array<std::string_view, 5> kOfNumbers = {"minimum", "maximum", "exclusiveMinimum",
                                                          "exclusiveMaximum", "multipleOf"};
  constexpr std::array<std::string_view, 4> kOfStrings = {"pattern", "minLength", "maxLength", "format"};
  constexpr std::array<std::string_view, 8> kOfArrays = {"items",    "prefixItems",     "additionalItems",
                                                         "minItems", "maxItems",        "uniqueItems",
                                                         "contains", "unevaluatedItems"};
  constexpr std::array<std::string_view, 11> kOfObjects = {
      "properties",       "required",      "additionalProperties", "patternProperties",
      "propertyNames",    "minProperties", "maxProperties",        "dependentRequired",
      "dependentSchemas", "dependencies",  "unevaluatedProperties"};
  const auto has = [key](const auto& keys) { return std::ranges::find(keys, key) != keys.end(); };
  if (has(kOfNumbers)) return kNumber;
  if (has(kOfStrings)) return kString;
  if (has(kOfArrays)) return kArray;
  return has(kOfObjects) ? unsigned{kObject} : 0;
}

const char* pattern_of_format(const std::string& format) {
#define KVANT_DATE                                                                              \
  "[0-9]{3}[1-9]-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]" \
  "[0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define KVANT_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
  if (format == "date") return "^" KVANT_DATE "$";
  if (format == "time") return "^" KVANT_TIME "$";
  if (format == "date-time") return "^" KVANT_DATE "T" KVANT_TIME "$";
#undef KVANT_DATE
#undef KVANT_TIME
  if (format == "uuid")
    return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  return nullptr;
}

const Json* member_of(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

const Json& anything() {
  static const Json kAnything = Json::object();
  return kAnything;
}
const Json& nothing() {
  static const Json kNothing = false;
  return kNothing;
}

bool is_nothing(const Json& schema) {
  return schema == false ||
         (schema.is_object() && schema.contains("not") &&
          (schema.at("not") == true || (schema.at("not").is_object() && schema.at("not").empty())));
}

bool says_something(const Json& schema) {
  return std::ranges::any_of(schema.items(), [](const auto& member) {
    const std::string& key = member.key();
    return types_of_keyword(key) != 0 || key == "type" || key == "not" || key == "if" || key == "enum" ||
           key == "const" || key == "anyOf" || key == "oneOf" || key.starts_with("$dynamic") ||
           key.starts_with("$recursive");
  });
}

std::optional<std::vector<Json>> listed_values(const Parts& parts) {
  for (const Json* part : parts) {
    if (const Json* value = member_of(*part, "const")) return std::vector<Json>{*value};
    if (const Json* values = member_of(*part, "enum"); values != nullptr && values->is_array())
      return std::vector<Json>(values->begin(), values->end());
  }
  return std::nullopt;
}

}  // namespace kvant::schema
