#include "serve/schema_values.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "serve/schema_pattern.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
using Verdict = std::optional<bool>;

constexpr int kMaxSchemaDepth = 128;  // the nesting depth, counted through references

Verdict negation(Verdict verdict) {
  return verdict ? Verdict(!*verdict) : verdict;
}

// AllHold combines verdicts on parts. The result is true if all parts hold, false if one part fails, and
// otherwise unknown.
class AllHold {
 public:
  void add(Verdict verdict) {
    fails_ = fails_ || verdict == false;
    is_unknown_ = is_unknown_ || !verdict;
  }
  Verdict verdict() const { return fails_ ? Verdict(false) : is_unknown_ ? Verdict() : Verdict(true); }

 private:
  bool fails_ = false, is_unknown_ = false;
};

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number_integer() || (value.is_number_float() && std::floor(value.get<double>()) == value);
  }
  return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
         (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
         (type == "array" && value.is_array()) || (type == "object" && value.is_object());
}

Verdict pattern_matches(const Json& source, const std::string& text) {
  if (!source.is_string()) return std::nullopt;
  const auto pattern = SchemaPattern::parse(source.get<std::string>());
  return pattern.ok() ? Verdict(pattern->matches(text)) : std::nullopt;
}

class ValueCheck {
 public:
  explicit ValueCheck(const Json& root) : root_(root) {}

  Verdict holds(const Json& schema, const Json& value, int depth) {
    if (schema.is_boolean()) return schema.get<bool>();
    if (!schema.is_object() || depth > kMaxSchemaDepth || ++steps_ > kMaxSteps) return std::nullopt;
    AllHold all;
    for (const auto& [key, said] : schema.items()) all.add(keyword(schema, key, said, value, depth + 1));
    return all.verdict();
  }

 private:
  static constexpr int kMaxSteps = 200'000;

  Verdict keyword(const Json& schema, const std::string& key, const Json& said, const Json& value,
                  int depth) {
    if (key == "$ref") {
      const Json* target = said.is_string() ? schema_part(root_, said.get<std::string>()) : nullptr;
      return target == nullptr ? Verdict() : holds(*target, value, depth);
    }
    if (key == "$dynamicRef" || key == "$recursiveRef" || key.starts_with("unevaluated")) return std::nullopt;
    if (key == "type") return type(said, value);
    if (key == "const") return same_value(said, value);
    if (key == "enum")
      return said.is_array() &&
             std::ranges::any_of(said, [&](const Json& one) { return same_value(one, value); });
    if (key == "allOf" || key == "anyOf" || key == "oneOf") return choice(key, said, value, depth);
    if (key == "not") return negation(holds(said, value, depth));
    if (key == "if") return condition(schema, said, value, depth);
    if (value.is_number()) return number(schema, key, said, value.get<double>());
    if (value.is_string()) return string(key, said, value.get_ref<const std::string&>());
    if (value.is_array()) return array(schema, key, said, value, depth);
    if (value.is_object()) return object(schema, key, said, value, depth);
    return true;
  }

  static Verdict type(const Json& said, const Json& value) {
    if (said.is_string()) return is_of_type(value, said.get<std::string>());
    return said.is_array() && std::ranges::any_of(said, [&](const Json& one) {
             return one.is_string() && is_of_type(value, one.get<std::string>());
           });
  }

  Verdict choice(const std::string& key, const Json& said, const Json& value, int depth) {
    if (!said.is_array()) return std::nullopt;
    std::int64_t n_true = 0, n_unknown = 0;
    for (const Json& part : said) {
      const Verdict one = holds(part, value, depth);
      n_true += one == true ? 1 : 0;
      n_unknown += one ? 0 : 1;
    }
    if (key == "allOf")
      return n_true + n_unknown < std::ssize(said) ? Verdict(false) : n_unknown > 0 ? Verdict() : true;
    if (key == "anyOf") return n_true > 0 ? Verdict(true) : n_unknown > 0 ? Verdict() : false;
    return n_true > 1 ? Verdict(false) : n_unknown > 0 ? Verdict() : n_true == 1;
  }

  Verdict condition(const Json& schema, const Json& said, const Json& value, int depth) {
    const Verdict holds_if = holds(said, value, depth);
    if (!holds_if) return std::nullopt;
    const auto then = schema.find(*holds_if ? "then" : "else");
    return then == schema.end() ? Verdict(true) : holds(*then, value, depth);
  }

  static Verdict number(const Json& schema, const std::string& key, const Json& said, double value) {
    const bool is_bound =
        key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum";
    // Older schemas have a boolean here, which excludes the bound itself.
    if (is_bound && said.is_boolean()) {
      const auto bound = schema.find(key == "exclusiveMinimum" ? "minimum" : "maximum");
      return said == false || bound == schema.end() || *bound != value;
    }
    if ((is_bound || key == "multipleOf") && !said.is_number()) return std::nullopt;
    if (key == "minimum") return value >= said.get<double>();
    if (key == "maximum") return value <= said.get<double>();
    if (key == "exclusiveMinimum") return value > said.get<double>();
    if (key == "exclusiveMaximum") return value < said.get<double>();
    if (key != "multipleOf") return true;
    const double quotient = value / said.get<double>();
    return std::floor(quotient) == quotient;
  }

  // Returns the count in a keyword, or -1 if the keyword's value is not a number.
  static double count(const Json& said) { return said.is_number() ? said.get<double>() : -1; }

  static Verdict string(const std::string& key, const Json& said, const std::string& value) {
    if (key == "pattern") return pattern_matches(said, value);
    if (key == "minLength") return static_cast<double>(character_count(value)) >= count(said);
    if (key == "maxLength") return static_cast<double>(character_count(value)) <= count(said);
    return true;
  }

  Verdict array(const Json& schema, const std::string& key, const Json& said, const Json& value, int depth) {
    AllHold all;
    if (key == "minItems") return static_cast<double>(value.size()) >= count(said);
    if (key == "maxItems") return static_cast<double>(value.size()) <= count(said);
    if (key == "uniqueItems") {
      for (std::size_t i = 0; said == true && i < value.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) all.add(!same_value(value[i], value[j]));
      }
    } else if (key == "prefixItems" || (key == "items" && said.is_array())) {
      for (std::size_t i = 0; i < std::min(said.size(), value.size()); ++i)
        all.add(holds(said[i], value[i], depth));
    } else if (key == "items" || key == "additionalItems") {
      const auto first = schema.find(key == "items" ? "prefixItems" : "items");
      if (key == "additionalItems" && (first == schema.end() || !first->is_array())) return true;
      for (std::size_t i = first == schema.end() ? 0 : first->size(); i < value.size(); ++i)
        all.add(holds(said, value[i], depth));
    } else if (key == "contains") {
      std::int64_t n = 0;
      for (const Json& item : value) {
        const Verdict one = holds(said, item, depth);
        if (!one) return std::nullopt;
        n += *one ? 1 : 0;
      }
      return static_cast<double>(n) >= schema.value("minContains", 1.0) &&
             static_cast<double>(n) <= schema.value("maxContains", 1e18);
    }
    return all.verdict();
  }

  Verdict object(const Json& schema, const std::string& key, const Json& said, const Json& value, int depth) {
    AllHold all;
    if (key == "minProperties") return static_cast<double>(value.size()) >= count(said);
    if (key == "maxProperties") return static_cast<double>(value.size()) <= count(said);
    if (key == "required") {
      for (const Json& name : said) all.add(name.is_string() && value.contains(name.get<std::string>()));
      return all.verdict();
    }
    if (key == "propertyNames") {
      for (const auto& member : value.items()) all.add(holds(said, Json(member.key()), depth));
      return all.verdict();
    }
    const bool depends = key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies";
    if (depends && said.is_object()) {
      for (const auto& [name, then] : said.items()) {
        if (!value.contains(name)) continue;
        if (!then.is_array()) {
          all.add(holds(then, value, depth));
          continue;
        }
        for (const Json& other : then) all.add(other.is_string() && value.contains(other.get<std::string>()));
      }
      return all.verdict();
    }
    if (key == "properties" || key == "patternProperties" || key == "additionalProperties") {
      for (const auto& [name, member] : value.items())
        all.add(member_holds(schema, key, said, name, member, depth));
    }
    return all.verdict();
  }

  Verdict member_holds(const Json& schema, const std::string& key, const Json& said, const std::string& name,
                       const Json& member, int depth) {
    if (key == "properties") {
      const auto part = said.find(name);
      return part == said.end() ? Verdict(true) : holds(*part, member, depth);
    }
    const auto properties = schema.find("properties"), patterns = schema.find("patternProperties");
    AllHold all;
    bool is_additional = properties == schema.end() || !properties->contains(name);
    if (patterns != schema.end()) {
      for (const auto& [source, part] : patterns->items()) {
        const Verdict matches = pattern_matches(Json(source), name);
        if (!matches) return std::nullopt;
        if (!*matches) continue;
        is_additional = false;
        if (key == "patternProperties") all.add(holds(part, member, depth));
      }
    }
    if (key == "additionalProperties" && is_additional) all.add(holds(said, member, depth));
    return all.verdict();
  }

  const Json& root_;
  int steps_ = 0;
};

// Decodes percent escapes in a reference, such as %41, which becomes A.
std::string without_percents(const std::string& text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0) {
      plain += static_cast<char>((16 * digit(text[i + 1])) + digit(text[i + 2]));
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::optional<bool> schema_holds(const Json& schema, const Json& value, const Json& root) {
  return ValueCheck(root).holds(schema, value, 0);
}

bool same_value(const Json& a, const Json& b) {
  if (a.is_array() && b.is_array()) return std::ranges::equal(a, b, same_value);
  if (!a.is_object() || !b.is_object()) return a == b;
  return a.size() == b.size() && std::ranges::all_of(a.items(), [&](const auto& member) {
           const auto other = b.find(member.key());
           return other != b.end() && same_value(member.value(), *other);
         });
}

const Json* schema_part(const Json& root, const std::string& reference) {
  if (!reference.starts_with('#')) return nullptr;
  const std::string pointer = without_percents(reference.substr(1));
  if (!pointer.empty() && pointer.front() != '/') return nullptr;
  const Json* part = &root;
  for (std::size_t at = 0; at < pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    std::string token;
    for (std::size_t i = at + 1; i < end; ++i) {
      const bool is_escape =
          pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1');
      token += !is_escape ? pointer[i] : pointer[i + 1] == '0' ? '~' : '/';
      if (is_escape) ++i;
    }
    at = end;
    if (part->is_object() && part->contains(token)) {
      part = &part->at(token);
    } else if (part->is_array() && !token.empty() && token.size() < 6 &&
               std::ranges::all_of(token, [](char c) { return c >= '0' && c <= '9'; }) &&
               std::stoul(token) < part->size()) {
      part = &part->at(std::stoul(token));
    } else {
      return nullptr;
    }
  }
  return part;
}

std::int64_t character_count(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace kvant
