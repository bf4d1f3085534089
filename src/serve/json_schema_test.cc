#include "serve/json_schema.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> grammar_from(const std::string& schema) {
  return schema_grammar(parse_json(schema).value(), "schema");
}

TEST(JsonSchema, BecomesAGrammar) {
  for (
      const char* schema :
      {R"({})", R"({"type": "object"})", R"({"type": ["string", "null"]})", R"({"enum": ["a", 2, null]})",
       R"({"const": {"a": [1]}})", R"({"type": "string", "pattern": "^[a-z]{2}-[0-9]+$"})",
       R"({"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 17}, "minItems": 1})",
       R"({"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "title": "T"})",
       R"({"anyOf": [{"type": "string", "maxLength": 4}, {"type": "boolean"}]})",
       R"({"$ref": "#/$defs/list", "$defs": {"list": {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}}}})"}) {
    const auto grammar = grammar_from(schema);
    ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.error().message;
    EXPECT_NE(grammar->find("root ::="), std::string::npos);
  }
}

TEST(JsonSchema, IsRefusedWhereAnAnswerCanNotBeHeldToIt) {
  for (const char* schema :
       {"5", R"({"type": "thing"})", R"({"not": {"type": "string"}})",
        R"({"type": "array", "uniqueItems": true})", R"({"type": "number", "minimum": 0})",
        R"({"type": "string", "pattern": "abc"})", R"({"type": "string", "pattern": "^(?=a)$"})",
        R"({"type": "string", "pattern": "^($"})", R"({"$ref": "https://example.com/schema"})",
        R"({"$ref": "#/$defs/none"})", R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})",
        R"({"enum": []})", R"({"properties": {"a": {"if": {}}}})",
        R"({"anyOf": [{"type": "string"}], "properties": {"a": {}}})",
        R"({"type": "object", "properties": {"a": true}})"}) {
    const auto grammar = grammar_from(schema);
    ASSERT_FALSE(grammar.ok()) << schema << "\n" << *grammar;
    EXPECT_TRUE(grammar.error().message.starts_with("'schema' ")) << grammar.error().message;
    EXPECT_EQ(grammar.error().message.find('\n'), std::string::npos);
  }
}

// Each level of types doubles what is below it.
TEST(JsonSchema, IsRefusedWhereItBecomesTooLarge) {
  std::string doubled = "{}";
  for (int i = 0; i < 20; ++i)
    doubled = R"({"type": ["object", "array"], "properties": {"a": )" + doubled + "}}";
  EXPECT_FALSE(grammar_from(doubled).ok());
  std::string chained = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 2000; ++i)
    chained += R"("d)" + std::to_string(i) + R"(": {"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}, ";
  EXPECT_FALSE(grammar_from(chained + R"("d2000": {"type": "null"}}})").ok());
}

}  // namespace
}  // namespace kvant
