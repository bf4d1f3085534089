// Describes what the keywords of a JSON schema apply to.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::schema {

using Json = nlohmann::ordered_json;
// Schemas that must all hold for one value. They belong to the document, or to those that are made here.
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

// Returns 0 if there is no such type.
unsigned type_named(const std::string& name);
// Returns the types that a keyword applies to; 0: all types, or the keyword only describes.
unsigned types_of_keyword(std::string_view key);
// Returns the pattern of a string format that is enforced, or null for formats that only describe.
const char* pattern_of_format(const std::string& format);

const Json* member_of(const Json& schema, const char* key);  // null: there is none
const Json& anything();
const Json& nothing();
bool is_nothing(const Json& schema);
// Returns whether a value can violate the schema's own keywords, without its references and its allOf.
bool says_something(const Json& schema);
// Returns the values that one of the parts lists.
std::optional<std::vector<Json>> listed_values(const Parts& parts);

}  // namespace kvant::schema
