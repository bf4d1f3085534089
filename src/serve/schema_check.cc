#include "serve/schema_check.h"

#include <fmt/format.h>
#include <json-schema-to-grammar.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <string_view>

#include "model/grammar_rules.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxSchemaParts = 4096;  // of all schemas of a request
constexpr int kMaxReferences = 256;  // of a schema: what makes rules calls itself from one to the next
constexpr std::int64_t kMaxAlternatives = 4096;
// In one object; and in all of them the pairs that so many are.
constexpr std::int64_t kMaxOptional = 256;
// Rules are called after properties, by regular expressions that call themselves for each character.
constexpr std::size_t kMaxPropertyBytes = 256;
constexpr std::size_t kMaxPatternBytes = 4096;
// Bounds of integers: what is written out by digits; and one without another, which has at most 15 digits.
constexpr double kMaxBound = 1e18, kMaxSingleBound = 1e15 - 1;

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
  SchemaCheck(const Json& root, const std::string& where) : root_(root), where_(where), references_(root) {}

  Status check(SchemaSum& sum) {
    check_definitions(sum);
    check_part(root_);
    check_alternatives(root_);
    if (status_.ok()) check_size(sum);
    return std::move(status_);
  }

 private:
  // Calls use(part) for each part of the schema but itself.
  template <class Use>
  static void each_part(const Json& schema, Use use) {
    for (const auto& [key, value] : schema.items()) {
      if (key == "properties" || key == "$defs" || key == "definitions" || key == "anyOf" || key == "oneOf" ||
          key == "allOf" || key == "prefixItems" || (key == "items" && value.is_array())) {
        for (const Json& part : value) use(part);
      } else if (key == "items" || (key == "additionalProperties" && value.is_object())) {
        use(value);
      }
    }
  }

  void check_part(const Json& schema) {
    if (!status_.ok()) return;
    if (!schema.is_object()) return fail("has a part that is no object: " + schema.dump().substr(0, 40));
    if (const auto reference = schema.find("$ref"); reference != schema.end()) {
      if (++n_references_ > kMaxReferences)
        return fail(fmt::format("has more than {} references", kMaxReferences));
      if (const std::string fault = SchemaReferences::fault(*reference, root_); !fault.empty())
        return fail(fault);
    }
    check_keywords(schema);
    check_counts(schema, "minLength", "maxLength");
    check_counts(schema, "minItems", "maxItems");
    check_integer(schema);
    if (const auto properties = schema.find("properties"); properties != schema.end())
      check_properties(*properties);
    each_part(schema, [this](const Json& part) { check_part(part); });
  }

  void check_properties(const Json& properties) {
    for (const auto& [name, part] : properties.items()) {
      if (name.size() > kMaxPropertyBytes)
        fail(fmt::format("has a property whose name is longer than {} bytes", kMaxPropertyBytes));
    }
  }

  // Names become those of rules: no two may become the same.
  void check_definitions(SchemaSum& sum) {
    std::set<std::string> own;
    for (const std::string section : {"$defs", "definitions"}) {
      if (!root_.is_object() || !root_.contains(section)) continue;
      for (const auto& [name, part] : root_.at(section).items()) {
        if (name.size() > kMaxPropertyBytes)
          return fail(
              fmt::format("has a name in '{}' that is longer than {} bytes", section, kMaxPropertyBytes));
        const std::string rule = SchemaReferences::rule_name(section, name);
        if (!own.insert(rule).second)
          return fail(
              fmt::format("has two names in '{}' that differ from '{}' in punctuation only", section, name));
        const auto [known, is_new] = sum.definitions.try_emplace(rule, part);
        if (!is_new && known->second != part)
          return fail(
              fmt::format("has '{}' in '{}', which is something else in another tool: rename one of them",
                          name, section));
      }
    }
  }

  // Counts that llama.cpp can't keep it takes for none.
  void check_counts(const Json& schema, const char* least_key, const char* most_key) {
    const auto count = [&](const char* key, std::int64_t missing) {
      const auto found = schema.find(key);
      if (found == schema.end()) return missing;
      if (found->is_number_integer() && *found >= 0 && *found <= kMaxGrammarRepetitions)
        return found->get<std::int64_t>();
      fail(fmt::format("has '{}': {}, which must be an integer from 0 to {}", key,
                       found->dump().substr(0, 40), kMaxGrammarRepetitions));
      return missing;
    };
    const std::int64_t least = count(least_key, 0), most = count(most_key, kMaxGrammarRepetitions);
    if (least > most) fail(fmt::format("has a '{}' above its '{}'", least_key, most_key));
  }

  void check_integer(const Json& schema) {
    const auto bound = [&](const char* key, const char* exclusive) -> std::optional<double> {
      const bool is_least = key == std::string_view("minimum");
      for (const char* name : {key, exclusive}) {
        const auto found = schema.find(name);
        if (found == schema.end() || !found->is_number()) continue;
        // As good as none, for llama.cpp too.
        if (name == key && *found == (is_least ? INT64_MIN : INT64_MAX)) return std::nullopt;
        const auto value = found->get<double>();
        if (std::abs(value) > kMaxBound)
          fail(fmt::format("has '{}': {}, which is too large", name, found->dump()));
        if (name == key) return is_least ? std::ceil(value) : std::floor(value);
        return is_least ? std::floor(value) + 1 : std::ceil(value) - 1;
      }
      return std::nullopt;
    };
    const auto low = bound("minimum", "exclusiveMinimum"), high = bound("maximum", "exclusiveMaximum");
    if (low && high && *low > *high) fail("has a least integer above its largest");
    if ((!high && low.value_or(0) > kMaxSingleBound) || (!low && high.value_or(0) < -kMaxSingleBound))
      fail("bounds an integer of more than 15 digits from one side only: bound it from both");
  }

  // Of every part: what a reference leads to is one, too.
  void check_alternatives(const Json& schema) {
    if (!status_.ok()) return;
    const std::int64_t n = references_.alternatives(schema);
    if (n < 0) return fail("has a reference that leads back to itself and says nothing else");
    if (n > kMaxAlternatives)
      return fail(fmt::format("has a part of more than {} alternatives", kMaxAlternatives));
    each_part(schema, [this](const Json& part) { check_alternatives(part); });
  }

  void check_size(SchemaSum& sum) {
    const SchemaSize size = references_.size(root_);
    if (size.parts < 0)
      return fail("has an 'allOf' that is among its own parts: give the '$ref' without an 'allOf'");
    sum.size.add(size);
    if (sum.size.parts > kMaxSchemaParts)
      return fail(fmt::format("makes more than {} parts, lists of types multiplied", kMaxSchemaParts));
    if (sum.size.optional_pairs > kMaxOptional * kMaxOptional)
      fail(fmt::format("makes too many optional properties: one object of {} or four of {} are the most",
                       kMaxOptional, kMaxOptional / 2));
  }

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
    if (pattern.size() > kMaxPatternBytes)
      fail(fmt::format("has a pattern of more than {} bytes", kMaxPatternBytes));
    check_pattern_counts(pattern);
    if (!status_.ok()) return;
    try {
      const std::string alone = json_schema_to_grammar(
          common_json::parse(Json{{"type", "string"}, {"pattern", pattern}}.dump()), /*force_gbnf=*/true);
      if (alone.find("root ::= string\n") == std::string::npos) return;
    } catch (const std::exception&) {  // it is no pattern
    }
    fail(fmt::format("has the pattern '{}', which an answer can't be held to", pattern));
  }

  // {m}, {m,} and {m,n}, outside of sets.
  void check_pattern_counts(std::string_view pattern) {
    bool in_set = false;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      const char c = pattern[i];
      if (c == '\\') ++i;
      if (c == '[' || c == ']') in_set = c == '[';
      if (c != '{' || in_set) continue;
      std::array<int, 2> counts = {0, -1};  // -1: without an end
      int n_counts = 1;
      for (++i; i < pattern.size() && pattern[i] != '}'; ++i) {
        const char digit = pattern[i];
        if (digit == ',' && n_counts == 1) {
          ++n_counts;
        } else if (digit >= '0' && digit <= '9') {
          int& count = counts[n_counts - 1];
          count = std::min(10 * std::max(count, 0) + (digit - '0'), kMaxGrammarRepetitions + 1);
        } else {
          return fail("has a pattern with braces that are no count");
        }
      }
      if (std::max(counts[0], counts[1]) > kMaxGrammarRepetitions ||
          (counts[1] >= 0 && counts[1] < counts[0]))
        return fail(fmt::format("has a pattern with a count that is above {}, or ends before it begins",
                                kMaxGrammarRepetitions));
    }
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

  const Json& root_;
  const std::string& where_;
  SchemaReferences references_;
  int n_references_ = 0;
  Status status_;
};

}  // namespace

Status check_schema(const Json& schema, const std::string& where, SchemaSum& sum) {
  return SchemaCheck(schema, where).check(sum);
}

}  // namespace kvant
