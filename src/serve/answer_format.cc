#include "serve/answer_format.h"

#include <fmt/format.h>

#include "serve/json_schema.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

std::string grammar_of(const Json& schema, const char* key, const std::string& where, JsonFields& fields) {
  // Without a schema, or with an empty schema, any object is valid.
  const bool is_empty = schema.is_null() || (schema.is_object() && schema.empty());
  auto grammar = schema_grammar(is_empty ? Json{{"type", "object"}} : schema, where);
  if (grammar.ok()) return std::move(grammar).value();
  fields.fail(key, grammar.error().message);
  return "";
}

std::string read_response_format(const Json& json, JsonFields& fields) {
  JsonFields format(json, "response_format");
  const std::string type =
      format.word("type", {"text", "json_object", "json_schema"}, JsonFields::Missing::is_wrong);
  std::string grammar;
  if (type == "json_object") {
    const Json* schema = format.value("schema");
    grammar = grammar_of(schema == nullptr ? Json() : *schema, "schema", "response_format.schema", format);
  } else if (type == "json_schema") {
    const Json* wrapped = format.value("json_schema");
    if (wrapped == nullptr) format.fail_missing("json_schema", "an object with a 'schema'");
    JsonFields named(wrapped == nullptr ? json : *wrapped, "response_format.json_schema");
    named.text("name");
    named.text("description");
    named.boolean("strict");
    const Json* schema = named.value("schema");
    if (wrapped != nullptr) {
      named.leave_others();
      format.take(named);
      grammar = grammar_of(schema == nullptr ? Json() : *schema, "json_schema",
                           "response_format.json_schema.schema", format);
    }
  }
  format.leave_others();
  fields.take(format);
  return grammar;
}

}  // namespace

AnswerFormat read_answer_format(JsonFields& fields) {
  const Json* format = fields.value("response_format");
  const Json* schema = fields.value("json_schema");
  const std::string grammar = fields.text("grammar").value_or("");
  if ((format != nullptr) + (schema != nullptr) + !grammar.empty() > 1)
    fields.fail("grammar", "give one of 'response_format', 'json_schema' and 'grammar'");
  if (fields.error()) return {};
  if (format != nullptr) return {read_response_format(*format, fields), "response_format"};
  if (schema != nullptr) return {grammar_of(*schema, "json_schema", "json_schema", fields), "json_schema"};
  return {grammar, "grammar"};
}

AnswerFormat read_flat_format(const Json& json, const char* parameter, JsonFields& fields) {
  JsonFields format(json, parameter);
  const std::string type =
      format.word("type", {"text", "json_object", "json_schema"}, JsonFields::Missing::is_wrong);
  const Json* schema = format.value("schema");
  format.text("name");
  format.text("description");
  format.boolean("strict");
  format.leave_others();
  std::string gbnf;
  if (type == "json_schema" && schema == nullptr) {
    format.fail_missing("schema", "a JSON schema");
  } else if (type == "json_schema" || type == "json_object") {
    gbnf = grammar_of(type == "json_schema" ? *schema : Json(), "schema", fmt::format("{}.schema", parameter),
                      format);
  }
  fields.take(format);
  return {gbnf, parameter};
}

std::optional<ApiError> set_grammar(const AnswerFormat& format, const Tokenizer& tokenizer,
                                    GenerationRequest& request) {
  if (format.gbnf.empty()) return std::nullopt;
  auto grammar = Grammar::make({format.gbnf}, tokenizer);
  if (!grammar.ok()) return ApiError{.message = grammar.error().message, .parameter = format.parameter};
  request.grammar = std::move(grammar).value();
  return std::nullopt;
}

}  // namespace kvant
