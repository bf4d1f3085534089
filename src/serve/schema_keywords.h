// Describes the keywords of JSON schemas for the rewriting of schemas (schema_holder.h). The functions return
// the types to which each keyword applies, and the values that a schema lists.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::schema {

using Json = nlohmann::ordered_json;
// Parts is a list of schemas that a value must all match. Each schema belongs to the client's document or to
// its SchemaHolder.
using Parts = std::vector<const Json*>;

enum ValueType : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  // a number that is not an integer
  kString = 16,
  kArray = 32,
  kObject = 64,
  kNumber = kInteger | kFraction,
  kAnyType = 127
};

// Returns the type called `name`, or 0 if there is none.
unsigned type_named(const std::string& name);
// Returns the types to which a keyword applies. Returns 0 if the keyword applies to all types, or is only a
// description.
unsigned types_of_keyword(std::string_view key);
// Returns a pattern for the strings of a format, or null if the format is only a description.
const char* pattern_of_format(const std::string& format);

const Json* member_of(const Json& schema, const char* key);  // null if the schema does not have the member
const Json& anything();
const Json& nothing();
bool is_nothing(const Json& schema);
// Returns whether the schema's own keywords can make a value invalid. References and allOf do not count.
bool says_something(const Json& schema);
// Returns the values that the parts list (enum, const), or nothing if no part lists values.
std::optional<std::vector<Json>> listed_values(const Parts& parts);

}  // namespace kvant::schema
