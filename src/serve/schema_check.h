// JSON schemas that become grammars: which do, and at what cost.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/result.h"
#include "serve/schema_references.h"

namespace kvant {

// What the schemas of a request come to.
struct SchemaSum {
  SchemaSize size;
  // The parts that references may lead to, by what their rules are called: llama.cpp writes one for all
  // schemas.
  std::map<std::string, nlohmann::ordered_json> definitions;
};

// Whether there is a grammar of the schema, as far as that can be seen without making it. An error: it is no
// schema, says something that a grammar can't hold an answer to, or comes to too much, with those in the sum,
// to which it is added; where names it in messages.
Status check_schema(const nlohmann::ordered_json& schema, const std::string& where, SchemaSum& sum);

}  // namespace kvant
