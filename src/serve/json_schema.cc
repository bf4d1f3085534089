#include "serve/json_schema.h"

#include <json-schema-to-grammar.h>

#include <algorithm>
#include <exception>

#include "serve/schema_check.h"

namespace kvant {

Result<std::string> schema_grammar(const nlohmann::ordered_json& schema, const std::string& where) {
  SchemaSum sum;
  KVANT_RETURN_IF_ERROR(check_schema(schema, where, sum));
  try {
    return json_schema_to_grammar(common_json::parse(schema.dump()), /*force_gbnf=*/true);
  } catch (const std::exception& e) {
    std::string why = e.what();
    std::ranges::replace(why, '\n', ' ');
    return error("'{}' can't be made a grammar: {}", where, why);
  }
}

}  // namespace kvant
