// What the keywords of a JSON schema are about.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::schema {

using Json = nlohmann::ordered_json;
// Schemas that all hold for one value. They lie in the document, or among those that are made here.
using Parts = std::vector<const Json*>;

enum ValueType : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kFraction = 8,  // a number that is no integer
  kString = 16,
  kArray = 32,
  kObject = 64,
  kNumber = kInteger | kFraction,
  kAnyType = 127
};

// 0: there is no such type.
unsigned type_named(const std::string& name);
// The types that a keyword says something about; 0: all, or it only describes.
unsigned types_of_keyword(std::string_view key);
// What formats of strings are held, as patterns. Others only describe: null.
const char* pattern_of_format(const std::string& format);

const Json* member_of(const Json& schema, const char* key);  // null: it has none
const Json& anything();
const Json& nothing();
bool is_nothing(const Json& schema);
// Whether a value may be against it, whatever its references and its allOf say.
bool says_something(const Json& schema);
// The values that one of the parts lists.
std::optional<std::vector<Json>> listed_values(const Parts& parts);

}  // namespace kvant::schema
