#include "serve/json_schema.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/json_reader.h"
#include "model/grammar_rules.h"

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

TEST(JsonSchema, IsRefusedWhereATextCanNotBeHeldToIt) {
  for (const char* schema :
       {"5", R"({"type": "thing"})", R"({"type": "string", "not": {"minLength": 2}})",
        R"({"type": "array", "uniqueItems": true})", R"({"type": "number", "minimum": 0})",
        R"({"type": ["number", "null"], "minimum": 0})", R"({"type": "string", "pattern": "^(?=a)$"})",
        R"({"type": "string", "pattern": "(a)\\1"})", R"({"type": "string", "pattern": "^($"})",
        R"({"$ref": "https://example.com/schema"})", R"({"$ref": "#/$defs/none"})", R"({"enum": []})",
        R"({"properties": {"a": {"if": {}}}})", R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
        R"({"type": "string", "pattern": "^a*b*$", "maxLength": 3})",
        R"({"type": "string", "format": "date", "pattern": "^2.*$"})",
        R"({"type": "integer", "minimum": 3, "maximum": 2})", R"({"type": "object", "minProperties": 1})"}) {
    const auto grammar = grammar_from(schema);
    ASSERT_FALSE(grammar.ok()) << schema << "\n" << *grammar;
    EXPECT_TRUE(grammar.error().message.starts_with("'schema")) << grammar.error().message;
    EXPECT_EQ(grammar.error().message.find('\n'), std::string::npos);
  }
}

// Expects that the schema is refused within half a second, in one sentence that contains `why`.
void expect_schema_refused(const std::string& schema, const std::string& why) {
  const auto start = std::chrono::steady_clock::now();
  const auto grammar = grammar_from(schema);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(500)) << schema.substr(0, 80);
  ASSERT_FALSE(grammar.ok()) << schema.substr(0, 80);
  EXPECT_NE(grammar.error().message.find(why), std::string::npos) << grammar.error().message;
  EXPECT_LT(grammar.error().message.size(), 400U);
}

// Makes a chain of definitions "d0" to "d<n>". part(reference) builds each definition, where `reference`
// refers to the next definition.
template <class Part>
std::string chain_of(int n, Part part) {
  std::string schema = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < n; ++i)
    schema += fmt::format(R"("d{}": {}, )", i, part(fmt::format(R"({{"$ref": "#/$defs/d{}"}})", i + 1)));
  return schema +
         fmt::format(R"("d{}": {{"type": "object", "properties": {{"x": {{"type": "null"}}}}}}}}}})", n);
}

// Each level contains the level below twice, and the grammar must have the rules of each level only once.
TEST(JsonSchema, IsWrittenOnceWhereItComesAgain) {
  std::string doubled = "{}";
  for (int i = 0; i < 20; ++i)
    doubled = R"({"type": ["object", "array"], "properties": {"a": )" + doubled + "}}";
  const auto twice = [](const std::string& key) {
    return [key](const std::string& next) {
      return R"({"properties": {"x": {")" + key + "\": [" + next + ", " + next + "]}}}";
    };
  };
  for (const std::string& schema : {doubled, chain_of(40, twice("allOf")), chain_of(40, twice("anyOf"))}) {
    const auto start = std::chrono::steady_clock::now();
    const auto grammar = grammar_from(schema);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    EXPECT_LT(grammar->size(), 100'000U);
  }
}

TEST(JsonSchema, IsRefusedWhereItBecomesTooLarge) {
  expect_schema_refused(chain_of(2000, [](const std::string& next) { return next; }), "lead too far");
  expect_schema_refused(chain_of(400, [](const std::string& next) { return R"({"items": )" + next + "}"; }),
                        "nested more than");
  std::string choices = R"({"allOf": [)";
  for (int i = 0; i < 14; ++i)
    choices += fmt::format(R"({}{{"anyOf": [{{"required": ["a{}"]}}, {{"required": ["b{}"]}}]}})",
                           i == 0 ? "" : ", ", i, i);
  expect_schema_refused(choices + "]}", "alternatives");
  std::string object = R"({"type": "object", "properties": {"p": {})";
  for (int i = 0; i < 300; ++i) object += fmt::format(R"(, "p{}": {{}})", i);
  expect_schema_refused(object + "}}", "optional properties");
}

TEST(JsonSchema, TakesAsManyOptionalPropertiesAsItSays) {
  std::string object = R"({"type": "object", "properties": {"p": {})";
  for (int i = 1; i < 256; ++i) object += fmt::format(R"(, "p{}": {{}})", i);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(grammar_from(object + "}}").ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(JsonSchema, IsRefusedWhereReferencesGoRound) {
  const char* round = "leads back to itself";
  expect_schema_refused(R"({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/A"}}})",
                        round);
  expect_schema_refused(
      R"({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}})",
      round);
  expect_schema_refused(R"({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {}]}}})",
                        round);
  const std::string node = R"({"$ref": "#/$defs/N", "$defs": {"N": {"properties": {"next": )";
  EXPECT_TRUE(grammar_from(node + R"({"allOf": [{"$ref": "#/$defs/N"}]}}}}})").ok());
  EXPECT_TRUE(grammar_from(node + R"({"$ref": "#/$defs/N"}}}}})").ok());
}

TEST(JsonSchema, MayCallItsPartsAnything) {
  const std::string name(300, 'n');
  expect_schema_refused(R"({"properties": {")" + name + R"(": {}}})", "longer than 256 bytes");
  EXPECT_TRUE(grammar_from(R"({"$ref": "#/$defs/)" + name + R"(", "$defs": {")" + name + R"(": {}}})").ok());
  EXPECT_TRUE(grammar_from(R"({"anyOf": [{"$ref": "#/$defs/a_b"}, {"$ref": "#/$defs/a.b"}],
                               "$defs": {"a_b": {"const": 1}, "a.b": {"const": 2}}})")
                  .ok());
  const auto refers = [](const char* reference) {
    return fmt::format(
        R"({{"properties": {{"a": {{"$ref": "{}"}}}}, "$defs": {{"a/": {{"items": [{{}}]}}}}}})", reference);
  };
  for (const char* reference : {"#", "#/$defs/a~1", "#/$defs/a~1/items/0", "#/%24defs/a~1"})
    EXPECT_TRUE(grammar_from(refers(reference)).ok()) << reference;
  for (const char* reference : {"#/$defs/b", "#/$defs/", "#/$defs/a~1/items/1", "#name", "other.json#/a"})
    expect_schema_refused(refers(reference), "leads to no part");
}

TEST(JsonSchema, IsRefusedWhereCountsCanNotBeKept) {
  expect_schema_refused(R"({"type": "string", "minLength": 3, "maxLength": 2})", "no value");
  expect_schema_refused(R"({"type": "array", "minItems": 3, "maxItems": 2})", "no value");
  for (const char* key : {"minLength", "maxLength", "minItems", "maxItems"}) {
    for (const char* count : {"2001", "4294967297", "-1", "1.5", "1e30"})
      expect_schema_refused(fmt::format(R"({{"{}": {}}})", key, count), "0 to 2000");
  }
  for (const char* count : {"{2001}", "{0,2001}", "{1,99999999999}"})
    expect_schema_refused(fmt::format(R"({{"pattern": "^a{}$"}})", count), "a count that is above 2000");
  expect_schema_refused(R"({"pattern": "^a{3,2}$"})", "ends before it begins");
  expect_schema_refused(R"({"pattern": "^)" + std::string(10'000, 'a') + "$\"}", "bytes");
  EXPECT_TRUE(grammar_from(R"({"type": "string", "pattern": "^a{0,2000}[{]\\{$"})").ok());
  EXPECT_TRUE(grammar_from(R"({"type": "array", "items": {"type": "null"}, "maxItems": 2000})").ok());
}

TEST(JsonSchema, HasIntegersWithinAnyBoundsThatDigitsHold) {
  expect_schema_refused(R"({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3})", "no value");
  expect_schema_refused(R"({"type": "integer", "minimum": 18446744073709551615})", "too large");
  for (const char* bounds :
       {R"("minimum": -9007199254740991, "maximum": 9007199254740991)", R"("exclusiveMinimum": 0)",
        R"("minimum": -9223372036854775808, "maximum": 9223372036854775807)", R"("minimum": 999999999999999)",
        R"("minimum": 100000000000000000)", R"("maximum": -100000000000000000)",
        R"("maximum": 9007199254740991)", R"("minimum": -9007199254740991)"}) {
    const auto grammar = grammar_from(fmt::format(R"({{"type": "integer", {}}})", bounds));
    ASSERT_TRUE(grammar.ok()) << bounds << grammar.error().message;
    EXPECT_TRUE(read_grammar(*grammar).ok()) << *grammar;
  }
}

}  // namespace
}  // namespace kvant
