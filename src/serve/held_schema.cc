#include "serve/held_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "model/grammar_rules.h"
#include "serve/schema_pattern.h"
#include "serve/schema_values.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;
// Schemas that all hold for one value. They lie in the document, or among those that are made here.
using Parts = std::vector<const Json*>;

constexpr std::int64_t kMaxSchemaParts = 8192, kMaxSchemaSymbols = 60'000;
constexpr std::int64_t kMaxOptional = 256;  // in one object; and in all of them the pairs that so many are
constexpr std::int64_t kMaxChoices = 2048;
constexpr int kMaxHeldDepth = 96;  // of parts in parts: the walk calls itself for each
// Rules are called after properties, by regular expressions that call themselves for each character.
constexpr std::size_t kMaxPropertyBytes = 256;
constexpr std::int64_t kLargestInteger = 999'999'999'999'999'999;
constexpr long double kLargestBound = 9e17L;
constexpr long double kUnbounded = std::numeric_limits<long double>::infinity();
constexpr std::int64_t kMaxMultiples = 256;  // that are listed one by one

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

unsigned type_named(const std::string& name) {
  static const std::map<std::string, unsigned> kTypes = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? 0 : found->second;
}

// The types that a keyword says something about; 0: all, or it only describes.
unsigned types_of_keyword(std::string_view key) {
  constexpr std::array<std::string_view, 5> kOfNumbers = {"minimum", "maximum", "exclusiveMinimum",
                                                          "exclusiveMaximum", "multipleOf"};
  constexpr std::array<std::string_view, 4> kOfStrings = {"pattern", "minLength", "maxLength", "format"};
  constexpr std::array<std::string_view, 8> kOfArrays = {"items",    "prefixItems",     "additionalItems",
                                                         "minItems", "maxItems",        "uniqueItems",
                                                         "contains", "unevaluatedItems"};
  constexpr std::array<std::string_view, 11> kOfObjects = {
      "properties",       "required",      "additionalProperties", "patternProperties",
      "propertyNames",    "minProperties", "maxProperties",        "dependentRequired",
      "dependentSchemas", "dependencies",  "unevaluatedProperties"};
  const auto has = [key](const auto& keys) { return std::ranges::find(keys, key) != keys.end(); };
  if (has(kOfNumbers)) return kNumber;
  if (has(kOfStrings)) return kString;
  if (has(kOfArrays)) return kArray;
  return has(kOfObjects) ? unsigned{kObject} : 0;
}

// What formats of strings are held, as patterns. Others only describe.
const char* pattern_of_format(const std::string& format) {
#define KVANT_DATE                                                                              \
  "[0-9]{3}[1-9]-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]" \
  "[0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define KVANT_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
  if (format == "date") return "^" KVANT_DATE "$";
  if (format == "time") return "^" KVANT_TIME "$";
  if (format == "date-time") return "^" KVANT_DATE "T" KVANT_TIME "$";
#undef KVANT_DATE
#undef KVANT_TIME
  if (format == "uuid")
    return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  return nullptr;
}

const Json* member_of(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

const Json& anything() {
  static const Json kAnything = Json::object();
  return kAnything;
}
const Json& nothing() {
  static const Json kNothing = false;
  return kNothing;
}

bool is_nothing(const Json& schema) {
  return schema == false ||
         (schema.is_object() && schema.contains("not") &&
          (schema.at("not") == true || (schema.at("not").is_object() && schema.at("not").empty())));
}

class SchemaHolder {
 public:
  SchemaHolder(const Json& root, SchemaUse use, std::string definitions, SchemaCost& cost)
      : root_(root), is_exact_(use == SchemaUse::exact), name_(std::move(definitions)), cost_(cost) {}

  Result<HeldSchema> hold(const std::string& where) {
    Parts parts = {&root_};
    if (!is_exact_) parts.push_back(own({{"type", "object"}}));
    std::optional<Json> held = write(parts, where, 0, /*is_root=*/true);
    if (status_.ok() && is_over_) too_much(where);
    if (status_.ok() && !held) drop(where, "describes no value at all");
    if (!status_.ok()) return status_.error();
    if (is_over_ || !held) {
      held = Json{{"type", "object"}};
      definitions_.clear();
    }
    if (!definitions_.empty()) {
      (*held)["$defs"] = Json::object();
      for (auto& [name, part] : definitions_) (*held)["$defs"][name] = std::move(part);
    }
    return HeldSchema{*std::move(held), std::move(loosened_)};
  }

 private:
  // --- what can't be held ---

  void fail(const std::string& where, const std::string& what) {
    if (status_.ok()) status_ = error("'{}' {}", where.substr(0, 200), what);
  }
  // An exact schema is refused; from one that is advice that part is left out.
  void drop(const std::string& where, const std::string& what) {
    if (is_exact_) return fail(where, what);
    if (loosened_.size() < kMaxLoosened)
      loosened_.push_back(fmt::format("'{}' {}", where.substr(0, 200), what));
  }
  void drop_keyword(const std::string& where, const std::string& keyword) {
    drop(where, fmt::format("has '{}', which no text can be held to here: leave it out", keyword));
  }
  void too_much(const std::string& where) {
    drop(where, fmt::format("comes to too much: the schemas of a request may have {} parts, {} optional "
                            "properties in one object and {} in four, and {} symbols in names, values and "
                            "patterns",
                            kMaxSchemaParts, kMaxOptional, kMaxOptional / 2, kMaxSchemaSymbols));
  }
  void charge(std::int64_t symbols) {
    ++cost_.parts;
    cost_.symbols += symbols;
    is_over_ = is_over_ || cost_.parts > kMaxSchemaParts || cost_.symbols > kMaxSchemaSymbols ||
               cost_.optional_pairs > kMaxOptional * kMaxOptional;
  }
  bool is_stopped() const { return is_over_ || !status_.ok(); }

  const Json* own(Json schema) {
    owned_.push_back(std::move(schema));
    return &owned_.back();
  }

  // --- references, allOf ---

  // The parts that hold where `part` does, those of references and of allOf each by itself.
  void flatten(const Json* part, const std::string& where, Parts& flat, Parts& path,
               bool& follows_reference) {
    if (is_stopped() || *part == true || std::ranges::find(flat, part) != flat.end()) return;
    if (is_nothing(*part)) {
      flat.push_back(&nothing());
      return;
    }
    if (!part->is_object())
      return drop(where, "has a part that is no schema: " +
                             part->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40));
    if (path.size() > kMaxHeldDepth) return drop(where, "has references that lead too far");
    flat.push_back(part);
    path.push_back(part);
    if (const Json* reference = member_of(*part, "$ref")) {
      follows_reference = true;
      const Json* target =
          reference->is_string() ? schema_part(root_, reference->get<std::string>()) : nullptr;
      if (target == nullptr) {
        drop(where,
             fmt::format("has the '$ref' {}, which leads to no part of the schema",
                         reference->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 100)));
      } else if (std::ranges::find(path, target) != path.end()) {
        drop(where, "has a reference that leads back to itself and says nothing else");
      } else {
        flatten(target, where, flat, path, follows_reference);
      }
    }
    if (const Json* all = member_of(*part, "allOf"); all != nullptr && all->is_array()) {
      for (const Json& one : *all) flatten(&one, where, flat, path, follows_reference);
    }
    path.pop_back();
  }

  // Those of them that say something by themselves.
  Parts flattened(const Parts& parts, const std::string& where, bool& follows_reference) {
    Parts flat, path;
    for (const Json* part : parts) flatten(part, where, flat, path, follows_reference);
    std::erase_if(flat, [](const Json* part) { return part->is_object() && !says_something(*part); });
    return flat;
  }

  // --- a part ---

  // The schema of the values that all of `parts` describe; nothing: there are none.
  std::optional<Json> write(const Parts& parts, const std::string& where, int depth, bool is_root = false) {
    if (depth > kMaxHeldDepth) {
      drop(where, fmt::format("is nested more than {} deep", kMaxHeldDepth));
      return Json::object();
    }
    charge(1);
    bool follows_reference = false;
    const Parts flat = flattened(parts, where, follows_reference);
    if (is_stopped()) return Json::object();
    if (is_root || !follows_reference) return write_flat(flat, where, depth);
    Parts key = flat;
    std::ranges::sort(key);
    const auto [known, is_new] =
        definition_names_.try_emplace(key, fmt::format("{}{}", name_, definition_names_.size()));
    const std::string name = known->second;
    const Json reference = {{"$ref", "#/$defs/" + name}};
    if (!is_new) {
      if (unguarded_.contains(name)) {
        drop(where, "has a reference that leads back to itself and says nothing else");
        return Json::object();
      }
      if (empty_definitions_.contains(name)) return std::nullopt;
      used_definitions_.insert(name);
      return reference;
    }
    unguarded_.insert(name);
    std::optional<Json> held = write_flat(flat, where, depth);
    unguarded_.erase(name);
    if (!held) {
      empty_definitions_.insert(name);
      if (!used_definitions_.contains(name)) return std::nullopt;
      drop(where, "describes no value at all");
      held = Json::object();
    }
    definitions_[name] = *std::move(held);
    return reference;
  }

  // The same within a property or an item: a reference to what is around it leads on.
  std::optional<Json> write_inside(const Parts& parts, const std::string& where, int depth) {
    std::set<std::string> unguarded;
    unguarded.swap(unguarded_);
    auto held = write(parts, where, depth + 1);
    unguarded_.swap(unguarded);
    return held;
  }

  std::optional<Json> write_flat(const Parts& flat, const std::string& where, int depth) {
    if (std::ranges::find(flat, &nothing()) != flat.end()) return std::nullopt;
    if (const auto values = listed_values(flat)) return write_values(*values, flat, where);
    std::vector<const Json*> choices;
    for (const Json* part : flat) {
      for (const char* key : {"anyOf", "oneOf"}) {
        const Json* choice = member_of(*part, key);
        if (choice == nullptr) continue;
        if (!choice->is_array() || choice->empty()) {
          drop(where, fmt::format("has '{}' that is no list of schemas", key));
        } else {
          choices.push_back(choice);
        }
      }
    }
    if (is_stopped()) return Json::object();
    return choices.empty() ? write_types(flat, where, depth) : write_choices(flat, choices, where, depth);
  }

  // --- enum, const ---

  // The values that one of the parts lists.
  static std::optional<std::vector<Json>> listed_values(const Parts& flat) {
    for (const Json* part : flat) {
      if (const Json* value = member_of(*part, "const")) return std::vector<Json>{*value};
      if (const Json* values = member_of(*part, "enum"); values != nullptr && values->is_array())
        return std::vector<Json>(values->begin(), values->end());
    }
    return std::nullopt;
  }

  std::optional<Json> write_values(const std::vector<Json>& values, const Parts& flat,
                                   const std::string& where) {
    Json kept = Json::array();
    std::set<std::string> texts;
    for (const Json& value : values) {
      bool holds = true;
      for (const Json* part : flat) {
        const auto one = schema_holds(*part, value, root_);
        if (!one) {
          drop(where, "lists values beside something that can't be told of them: leave one of both out");
          if (is_stopped()) return Json::object();
        }
        holds = holds && one != false;
      }
      const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
      if (!holds || !texts.insert(text).second) continue;
      kept.push_back(value);
      charge(std::ssize(text));
    }
    if (kept.empty()) return std::nullopt;
    return Json{{"enum", std::move(kept)}};
  }

  // --- anyOf, oneOf ---

  // What a part says itself. What its references and lists lead to is followed from elsewhere.
  const Json* own_keywords(const Json* part) {
    constexpr std::array<const char*, 4> kLeading = {"anyOf", "oneOf", "allOf", "$ref"};
    if (!part->is_object() ||
        std::ranges::none_of(kLeading, [part](const char* key) { return part->contains(key); }))
      return part;
    const auto [known, is_new] = own_keywords_.try_emplace(part, nullptr);
    if (is_new) {
      Json rest = *part;
      for (const char* key : kLeading) rest.erase(key);
      known->second = own(std::move(rest));
    }
    return known->second;
  }

  std::optional<Json> write_choices(const Parts& flat, const std::vector<const Json*>& choices,
                                    const std::string& where, int depth) {
    Parts beside;
    for (const Json* part : flat) {
      const Json* rest = own_keywords(part);
      if (says_something(*rest) && std::ranges::find(beside, rest) == beside.end()) beside.push_back(rest);
    }
    std::vector<Parts> alternatives = {beside};
    for (const Json* choice : choices) {
      std::vector<Parts> more;
      for (const Parts& before : alternatives) {
        for (const Json& one : *choice) {
          more.push_back(before);
          more.back().push_back(&one);
        }
      }
      n_alternatives_ += std::ssize(more);
      if (n_alternatives_ > kMaxChoices) {
        drop(where, fmt::format("comes to more than {} alternatives", kMaxChoices));
        if (!is_stopped()) return write_types(beside, where, depth);
        return Json::object();
      }
      alternatives = std::move(more);
    }
    for (const Json* part : flat) {
      const Json* one_of = member_of(*part, "oneOf");
      if (one_of == nullptr || is_stopped()) continue;
      if (const auto listed = write_listed_choice(*one_of, flat, where)) return *listed;
      check_disjoint(*one_of, beside, choices.size() == 1, where);
    }
    Json held = Json::array();
    for (const Parts& alternative : alternatives) {
      if (is_stopped()) return Json::object();
      std::optional<Json> one = write(alternative, where, depth + 1);
      if (one && std::ranges::find(held, *one) == held.end()) held.push_back(*std::move(one));
    }
    if (held.empty()) return std::nullopt;
    if (held.size() == 1) return held.front();
    return Json{{"anyOf", std::move(held)}};
  }

  static bool says_something(const Json& schema) {
    return std::ranges::any_of(schema.items(), [](const auto& member) {
      const std::string& key = member.key();
      return types_of_keyword(key) != 0 || key == "type" || key == "not" || key == "if" || key == "enum" ||
             key == "const" || key == "anyOf" || key == "oneOf" || key.starts_with("$dynamic") ||
             key.starts_with("$recursive");
    });
  }

  // A oneOf whose alternatives all list their values: those that one of them lists alone.
  std::optional<std::optional<Json>> write_listed_choice(const Json& one_of, const Parts& flat,
                                                         const std::string& where) {
    std::vector<Json> all;
    for (const Json& one : one_of) {
      bool follows = false;
      Parts alternative, path;
      flatten(&one, where, alternative, path, follows);
      const auto values = listed_values(alternative);
      if (!values) return std::nullopt;
      all.insert(all.end(), values->begin(), values->end());
    }
    return write_values(all, flat, where);
  }

  // What is seen of an alternative from outside.
  struct Outline {
    unsigned stated = kAnyType;     // types that it allows
    unsigned generated = kAnyType;  // types that are written for it
    std::optional<std::vector<Json>> values;
    std::set<std::string> properties, required;
    bool has_additional = false;                      // properties that it doesn't name are written
    bool forbids_others = false;                      // properties that it doesn't name are against it
    std::map<std::string, std::vector<Json>> listed;  // values of properties
    double low = -std::numeric_limits<double>::infinity(), high = -low;
  };

  Outline outline(Parts parts, const Json& alternative, bool is_all, const std::string& where) {
    parts.push_back(&alternative);
    bool follows = false;
    const Parts flat = flattened(parts, where, follows);
    Outline seen{.values = listed_values(flat), .has_additional = !is_all};
    unsigned implied = 0;
    bool has_type = false;
    for (const Json* part : flat) {
      if (!part->is_object()) continue;
      has_type = has_type || part->contains("type");
      seen.stated &= stated_types(*part, "", /*reports=*/false);
      for (const auto& [key, said] : part->items()) implied |= types_of_keyword(key);
      outline_object(*part, where, seen);
      // They may name more properties.
      for (const char* key : {"anyOf", "oneOf", "propertyNames", "dependentRequired", "dependencies"})
        seen.has_additional = seen.has_additional || part->contains(key);
      for (const char* key : {"minimum", "exclusiveMinimum"}) {
        if (const Json* bound = member_of(*part, key); bound != nullptr && bound->is_number())
          seen.low = std::max(seen.low, bound->get<double>());
      }
      for (const char* key : {"maximum", "exclusiveMaximum"}) {
        if (const Json* bound = member_of(*part, key); bound != nullptr && bound->is_number())
          seen.high = std::min(seen.high, bound->get<double>());
      }
    }
    seen.generated = has_type || implied == 0 ? seen.stated : seen.stated & implied;
    if (seen.properties.empty() && !seen.forbids_others) seen.has_additional = true;
    return seen;
  }

  void outline_object(const Json& part, const std::string& where, Outline& seen) {
    if (const Json* properties = member_of(part, "properties");
        properties != nullptr && properties->is_object()) {
      for (const auto& [name, described] : properties->items()) {
        seen.properties.insert(name);
        bool follows = false;
        if (const auto values = listed_values(flattened({&described}, where, follows)))
          seen.listed.try_emplace(name, *values);
      }
    }
    if (const Json* required = member_of(part, "required"); required != nullptr && required->is_array()) {
      for (const Json& name : *required) {
        if (name.is_string()) seen.required.insert(name.get<std::string>());
      }
      seen.properties.insert(seen.required.begin(), seen.required.end());
    }
    const Json* additional = member_of(part, "additionalProperties");
    if (additional == nullptr || part.contains("patternProperties")) return;
    const bool is_closed = is_nothing(*additional);
    seen.forbids_others = seen.forbids_others || is_closed;
    seen.has_additional = seen.has_additional || !is_closed;
  }

  // Whether no value that is written for `one` is of `other`.
  static bool excludes(const Outline& one, const Outline& other) {
    if ((one.generated & other.stated) == 0) return true;
    const auto share_no_value = [](const std::vector<Json>& a, const std::vector<Json>& b) {
      return std::ranges::none_of(a, [&](const Json& value) {
        return std::ranges::any_of(b, [&](const Json& same) { return same_value(value, same); });
      });
    };
    if (one.values && other.values) return share_no_value(*one.values, *other.values);
    if ((one.generated & other.stated & ~kNumber) == 0 && (one.low > other.high || one.high < other.low))
      return true;
    if ((one.generated & other.stated) != kObject) return false;
    if (std::ranges::any_of(other.required, [&](const std::string& name) {
          return !one.properties.contains(name) && !one.has_additional;
        }))
      return true;
    return std::ranges::any_of(one.required, [&](const std::string& name) {
      if (other.forbids_others && !other.properties.contains(name)) return true;
      const auto mine = one.listed.find(name), theirs = other.listed.find(name);
      return mine != one.listed.end() && theirs != other.listed.end() &&
             share_no_value(mine->second, theirs->second);
    });
  }

  // is_all: there are no other choices beside this one.
  void check_disjoint(const Json& one_of, const Parts& beside, bool is_all, const std::string& where) {
    std::vector<Outline> outlines;
    if (std::ssize(one_of) > kMaxOptional)
      return drop(where, "has a 'oneOf' of too many alternatives: use 'anyOf'");
    for (const Json& one : one_of) outlines.push_back(outline(beside, one, is_all, where));
    for (std::size_t i = 0; i < outlines.size(); ++i) {
      for (std::size_t j = 0; j < outlines.size(); ++j) {
        if (i == j || is_nothing(one_of[i]) || is_nothing(one_of[j]) || excludes(outlines[i], outlines[j]))
          continue;
        return drop(where,
                    fmt::format("has a 'oneOf' of which a value may be of two alternatives ({} and {}): use "
                                "'anyOf', or tell them apart by a required property with a 'const'",
                                i, j));
      }
    }
  }

  // --- types ---

  unsigned stated_types(const Json& part, const std::string& where, bool reports = true) {
    const Json* type = member_of(part, "type");
    if (type == nullptr) return kAnyType;
    unsigned types = 0;
    const Json list = type->is_array() ? *type : Json::array({*type});
    for (const Json& one : list) {
      const unsigned named = one.is_string() ? type_named(one.get<std::string>()) : 0;
      if (named == 0 && reports)
        drop(where, "has the type " + one.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40) +
                        ", which JSON doesn't have");
      types |= named == 0 ? unsigned{kAnyType} : named;
    }
    return types;
  }

  std::optional<Json> write_types(const Parts& flat, const std::string& where, int depth) {
    unsigned types = kAnyType, implied = 0;
    bool has_type = false;
    for (const Json* part : flat) {
      has_type = has_type || part->contains("type");
      types &= stated_types(*part, where);
      for (const auto& [key, said] : part->items()) implied |= types_of_keyword(key);
      types &= ~denied_types(*part, where);
      for (const char* key : {"if", "$dynamicRef", "$recursiveRef"}) {
        if (part->contains(key)) drop_keyword(where, key);
      }
    }
    if (is_stopped()) return Json::object();
    if (!has_type && implied != 0) types &= implied;
    if (types == kAnyType && implied == 0) return Json::object();
    if ((types & kNumber) == kFraction) {
      drop_keyword(where, "not");
      types |= kInteger;
    }
    Json held = Json::array();
    const auto add = [&held](std::optional<Json> one) {
      if (one) held.push_back(*std::move(one));
    };
    if ((types & kObject) != 0) add(write_object(flat, where, depth));
    if ((types & kArray) != 0) add(write_array(flat, where, depth));
    if ((types & kString) != 0) add(write_string(flat, where));
    if ((types & kNumber) != 0) add(write_number(flat, (types & kFraction) != 0, where));
    if ((types & kBoolean) != 0) add(Json{{"type", "boolean"}});
    if ((types & kNull) != 0) add(Json{{"type", "null"}});
    if (held.empty()) return std::nullopt;
    if (held.size() == 1) return held.front();
    return Json{{"anyOf", std::move(held)}};
  }

  unsigned denied_types(const Json& part, const std::string& where) {
    const Json* denied = member_of(part, "not");
    if (denied == nullptr || *denied == false) return 0;
    if (denied->is_object() && denied->size() == 1 && denied->contains("type"))
      return stated_types(*denied, where);
    drop_keyword(where, "not");
    return 0;
  }

  // --- numbers ---

  std::optional<Json> write_number(const Parts& flat, bool may_be_fraction, const std::string& where) {
    long double low = -kUnbounded, high = kUnbounded;
    std::vector<double> multiples;
    for (const Json* part : flat) {
      for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
        const Json* said = member_of(*part, key);
        if (said == nullptr || said->is_boolean()) continue;  // of older schemas: beside the bound
        const bool is_multiple = key == std::string_view("multipleOf");
        if (!said->is_number() || (is_multiple && said->get<double>() <= 0)) {
          drop(where, fmt::format("has a '{}' that is no number", key));
        } else if (is_multiple && *said == 1) {
          may_be_fraction = false;
        } else if (is_multiple) {
          multiples.push_back(said->get<double>());
        }
      }
    }
    for (const Json* part : flat) {
      bound_number(*part, may_be_fraction, where, low, high);
    }
    if (is_stopped()) return Json::object();
    if (may_be_fraction) {
      if (!multiples.empty()) drop_keyword(where, "multipleOf");
      return Json{{"type", "number"}};
    }
    return write_integer(low, high, multiples, where);
  }

  // All integers of 64 bits are numbers of their own.
  static long double exact_number(const Json& number) {
    if (number.is_number_unsigned()) return static_cast<long double>(number.get<std::uint64_t>());
    if (number.is_number_integer()) return static_cast<long double>(number.get<std::int64_t>());
    return number.get<double>();
  }

  void bound_number(const Json& part, bool may_be_fraction, const std::string& where, long double& low,
                    long double& high) {
    for (const bool is_least : {true, false}) {
      const char* inclusive = is_least ? "minimum" : "maximum";
      const char* exclusive = is_least ? "exclusiveMinimum" : "exclusiveMaximum";
      const Json* outer = member_of(part, exclusive);
      for (const char* key : {inclusive, exclusive}) {
        const Json* said = member_of(part, key);
        if (said == nullptr || !said->is_number()) continue;
        if (may_be_fraction) {
          drop_keyword(where, fmt::format("{}' of a 'number", key));
          continue;
        }
        const bool excludes = key == exclusive || (outer != nullptr && *outer == true);
        const long double bound = exact_number(*said);
        if (is_least) {
          low = std::max(low, excludes ? std::floor(bound) + 1 : std::ceil(bound));
        } else {
          high = std::min(high, excludes ? std::ceil(bound) - 1 : std::floor(bound));
        }
      }
    }
  }

  std::optional<Json> write_integer(long double low, long double high, const std::vector<double>& multiples,
                                    const std::string& where) {
    if (low > high) return std::nullopt;
    if (low > kLargestBound || high < -kLargestBound) {
      drop(where, "has a bound that is too large");
      return Json{{"type", "integer"}};
    }
    const bool has_low = low >= -kLargestBound, has_high = high <= kLargestBound;
    std::int64_t least = has_low ? static_cast<std::int64_t>(low) : 0,
                 most = has_high ? static_cast<std::int64_t>(high) : 0;
    const std::int64_t many = 999'999'999'999'999;  // what digits are counted to
    if (!has_low) least = has_high && most < -many / 10 ? -kLargestInteger : -many;
    if (!has_high) most = has_low && least > many / 10 ? kLargestInteger : many;
    const bool divides_all =
        std::ranges::all_of(multiples, [](double m) { return std::floor(1 / m) == 1 / m; });
    if (!divides_all) {
      Json values = Json::array();
      if (has_low && has_high && most - least <= kMaxMultiples * kMaxMultiples) {
        for (std::int64_t n = least; n <= most && std::ssize(values) <= kMaxMultiples; ++n) {
          if (std::ranges::all_of(multiples,
                                  [n](double m) { return std::fmod(static_cast<double>(n), m) == 0; }))
            values.push_back(n);
        }
        charge(4 * std::ssize(values));
        if (values.empty()) return std::nullopt;
        if (std::ssize(values) <= kMaxMultiples) return Json{{"enum", std::move(values)}};
      }
      drop_keyword(where, "multipleOf");
    }
    if (!has_low && !has_high) return Json{{"type", "integer"}};
    charge(64);
    return Json{{"type", "integer"}, {"minimum", least}, {"maximum", most}};
  }

  // --- counts ---

  struct Counts {
    std::int64_t least = 0, most = -1;  // most < 0: no limit
    bool is_met_by_none() const { return most >= 0 && least > most; }
  };

  // limit: of what a grammar can count.
  Counts read_counts(const Parts& flat, const char* least_key, const char* most_key, const std::string& where,
                     std::int64_t limit = kMaxGrammarRepetitions) {
    Counts counts;
    for (const Json* part : flat) {
      for (const char* key : {least_key, most_key}) {
        const Json* said = member_of(*part, key);
        if (said == nullptr) continue;
        const double count = said->is_number() ? said->get<double>() : -1;
        if (count < 0 || std::floor(count) != count || count > static_cast<double>(limit)) {
          drop(where, fmt::format("has '{}': {}, which must be an integer from 0 to {}", key,
                                  said->dump().substr(0, 40), limit));
        } else if (key == least_key) {
          counts.least = std::max(counts.least, static_cast<std::int64_t>(count));
        } else {
          counts.most = counts.most < 0 ? static_cast<std::int64_t>(count)
                                        : std::min(counts.most, static_cast<std::int64_t>(count));
        }
      }
    }
    return counts;
  }

  // --- strings ---

  std::optional<Json> write_string(const Parts& flat, const std::string& where) {
    const Counts counts = read_counts(flat, "minLength", "maxLength", where);
    if (counts.is_met_by_none()) return std::nullopt;
    std::optional<SchemaPattern> pattern;
    std::string source;
    for (const Json* part : flat) {
      const Json* said = member_of(*part, "pattern");
      if (said != nullptr && !said->is_string()) {
        drop(where, "has a 'pattern' that is no text");
      } else if (said != nullptr && (!pattern || source != said->get<std::string>())) {
        add_pattern(said->get<std::string>(), "pattern", where, pattern, source);
      }
      const Json* format = member_of(*part, "format");
      const char* held =
          format != nullptr && format->is_string() ? pattern_of_format(format->get<std::string>()) : nullptr;
      if (held != nullptr && (!pattern || source != held))
        add_pattern(held, "format", where, pattern, source);
    }
    if (is_stopped()) return Json::object();
    if (!pattern && counts.least == 0 && counts.most < 0) return Json{{"type", "string"}};
    if (!pattern) {
      pattern = SchemaPattern::any_string(counts.least, counts.most);
    } else if (SchemaPattern bounded = *pattern; counts.least > 0 || counts.most >= 0) {
      if (const Status fits = bounded.bound_length(counts.least, counts.most); !fits.ok()) {
        drop(where, fits.error().message);
      } else {
        pattern = std::move(bounded);
      }
    }
    if (pattern->is_empty()) return std::nullopt;
    if (!is_exact_ && pattern->size() > 500 && cost_.symbols + pattern->size() > kMaxSchemaSymbols / 2) {
      drop(where, "has a length or a pattern that comes to too much");
      return Json{{"type", "string"}};
    }
    charge(pattern->size());
    const std::string json = pattern->json_pattern();
    if (json == "^$") return Json{{"enum", Json::array({""})}};
    return Json{{"type", "string"}, {"pattern", json}};
  }

  void add_pattern(const std::string& text, const char* key, const std::string& where,
                   std::optional<SchemaPattern>& pattern, std::string& source) {
    if (pattern)
      return drop(
          where,
          fmt::format("has a '{}' beside another one or a 'pattern', of which a text can be held to one only",
                      key));
    auto read = SchemaPattern::parse(text);
    if (!read.ok())
      return drop(where,
                  fmt::format("has the pattern '{}', which {}", text.substr(0, 100), read.error().message));
    pattern = *std::move(read);
    source = text;
  }

  // --- arrays ---

  std::optional<Json> write_array(const Parts& flat, const std::string& where, int depth) {
    Counts counts = read_counts(flat, "minItems", "maxItems", where);
    std::int64_t n_first = 0;  // items that are described one by one
    bool describes_rest = false;
    for (const Json* part : flat) {
      if (const Json* first = first_items(*part)) n_first = std::max(n_first, std::ssize(*first));
      const Json* rest = other_items(*part);
      describes_rest = describes_rest || (rest != nullptr && !is_nothing(*rest));
      check_array_keywords(*part, counts, where);
    }
    if (is_stopped()) return Json::object();
    if (counts.is_met_by_none()) return std::nullopt;
    Json held = {{"type", "array"}};
    if (n_first > 0) return write_tuple(flat, counts, n_first, describes_rest, where, depth);
    const std::optional<Json> item = write_inside(item_parts(flat, 0), where + "[]", depth);
    if (!item) counts.most = 0;
    if (counts.is_met_by_none()) return std::nullopt;
    const bool says_items = item && !item->empty();
    if (says_items) held["items"] = *item;
    if (!item) held["items"] = Json::object();
    if (counts.least > 0) held["minItems"] = counts.least;
    if (counts.most >= 0) held["maxItems"] = counts.most;
    charge(4 * std::max(counts.least, counts.most));
    return held;
  }

  void check_array_keywords(const Json& part, const Counts& counts, const std::string& where) {
    if (part.contains("contains")) drop_keyword(where, "contains");
    const Json* unique = member_of(part, "uniqueItems");
    if (unique != nullptr && *unique != false && (counts.most < 0 || counts.most > 1))
      drop_keyword(where, "uniqueItems");
    const Json* other = member_of(part, "unevaluatedItems");
    if (other != nullptr && *other != true && !part.contains("items") && first_items(part) == nullptr)
      drop_keyword(where, "unevaluatedItems");
  }

  static const Json* first_items(const Json& part) {
    const Json* first = member_of(part, "prefixItems");
    if (first == nullptr) first = member_of(part, "items");
    return first != nullptr && first->is_array() ? first : nullptr;
  }
  static const Json* other_items(const Json& part) {
    const Json* items = member_of(part, "items");
    return items != nullptr && items->is_array() ? member_of(part, "additionalItems") : items;
  }
  static Parts item_parts(const Parts& flat, std::int64_t index) {
    Parts parts;
    for (const Json* part : flat) {
      const Json* first = first_items(*part);
      const Json* rest = other_items(*part);
      if (first != nullptr && index < std::ssize(*first)) {
        parts.push_back(&(*first)[index]);
      } else if (rest != nullptr) {
        parts.push_back(rest);
      } else if (const Json* unevaluated = member_of(*part, "unevaluatedItems")) {
        parts.push_back(unevaluated);
      }
    }
    return parts;
  }

  // Has all items that are described one by one, and no more than have to be.
  std::optional<Json> write_tuple(const Parts& flat, const Counts& counts, std::int64_t n_first,
                                  bool describes_rest, const std::string& where, int depth) {
    std::int64_t length = std::max(n_first, counts.least);
    if (counts.most >= 0) length = std::min(length, counts.most);
    if (length > n_first + kMaxOptional) {
      drop_keyword(where, "minItems' beside 'prefixItems");
      length = n_first;
    }
    if (describes_rest && (counts.most < 0 || counts.most > length))
      drop_keyword(where, "items' beside 'prefixItems");
    Json items = Json::array();
    for (std::int64_t i = 0; i < length && !is_stopped(); ++i) {
      std::optional<Json> item = write_inside(item_parts(flat, i), fmt::format("{}[{}]", where, i), depth);
      if (!item && i < counts.least) return std::nullopt;
      if (!item) break;
      items.push_back(*std::move(item));
    }
    if (items.empty()) return Json{{"type", "array"}, {"items", Json::object()}, {"maxItems", 0}};
    return Json{{"type", "array"}, {"prefixItems", std::move(items)}};
  }

  // --- objects ---

  std::optional<Json> write_object(const Parts& flat, const std::string& where, int depth) {
    std::vector<std::string> names;
    std::set<std::string> required;
    bool is_open = true, says_additional = false, says_properties = false;
    for (const Json* part : flat) {
      read_names(*part, where, names, required);
      const Json* additional = member_of(*part, "additionalProperties");
      says_additional = says_additional || additional != nullptr;
      says_properties = says_properties || part->contains("properties");
      if (additional != nullptr && is_nothing(*additional)) is_open = false;
    }
    add_dependents(flat, names, required, where);
    for (const std::string& name : required) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    is_open = is_open && (says_additional || (names.empty() && !says_properties));
    Json properties = Json::object();
    for (const std::string& name : names) {
      if (is_stopped()) return Json::object();
      if (name.size() > kMaxPropertyBytes) {
        drop(where, fmt::format("has a property whose name is longer than {} bytes", kMaxPropertyBytes));
        continue;
      }
      std::optional<Json> property =
          may_be_named(flat, name, where)
              ? write_inside(property_parts(flat, name, where), where + "." + name, depth)
              : std::nullopt;
      charge(std::ssize(name) + 8);
      if (property) properties[name] = *std::move(property);
      if (!properties.contains(name) && required.contains(name)) return std::nullopt;
    }
    if (is_open) is_open = may_be_open(flat, names, where);
    if (!hold_number_of_properties(flat, is_open, properties, required, where)) return std::nullopt;
    const std::int64_t n_optional = std::ssize(properties) - std::ssize(required);
    cost_.optional_pairs += n_optional * n_optional;
    charge(2);
    Json held = {{"type", "object"}};
    std::optional<Json> other = is_open && !is_stopped()
                                    ? write_inside(other_property_parts(flat), where + ".*", depth)
                                    : std::nullopt;
    const bool is_any = properties.empty() && other && other->empty();
    if (is_any) return held;
    if (!properties.empty()) held["properties"] = properties;
    if (!required.empty()) held["required"] = required;
    held["additionalProperties"] = !other ? Json(false) : other->empty() ? Json(true) : *other;
    return held;
  }

  void read_names(const Json& part, const std::string& where, std::vector<std::string>& names,
                  std::set<std::string>& required) {
    if (const Json* properties = member_of(part, "properties")) {
      if (!properties->is_object()) drop(where, "has 'properties' that are no object");
      for (const auto& [name, described] : properties->items()) {
        if (properties->is_object() && std::ranges::find(names, name) == names.end()) names.push_back(name);
      }
    }
    if (const Json* list = member_of(part, "required")) {
      if (!list->is_array()) return drop(where, "has a 'required' that is no list of names");
      for (const Json& name : *list) {
        if (name.is_string()) {
          required.insert(name.get<std::string>());
        } else {
          drop(where, "has a 'required' that is no list of names");
        }
      }
    }
    // A map whose names are listed has these properties.
    const Json* allowed = member_of(part, "propertyNames");
    if (allowed == nullptr || part.contains("properties")) return;
    if (const auto values = listed_values({allowed})) {
      for (const Json& name : *values) {
        if (name.is_string() && std::ranges::find(names, name.get<std::string>()) == names.end())
          names.push_back(name.get<std::string>());
      }
    }
  }

  // What properties bring with them, where they have to be there themselves.
  void add_dependents(const Parts& flat, const std::vector<std::string>& names,
                      std::set<std::string>& required, const std::string& where) {
    for (std::size_t round = 0, before = std::string::npos; before != required.size() && round < 64;
         ++round) {
      before = required.size();
      for_each_dependent(flat, [&](const std::string& name, const Json& others) {
        if (!required.contains(name) || !others.is_array()) return;
        for (const Json& other : others) {
          if (other.is_string()) required.insert(other.get<std::string>());
        }
      });
    }
    for_each_dependent(flat, [&](const std::string& name, const Json& others) {
      const bool is_written =
          std::ranges::find(names, name) != names.end() || required.contains(name) || names.empty();
      const bool is_met = others.is_array() && std::ranges::all_of(others, [&](const Json& other) {
                            return other.is_string() && required.contains(other.get<std::string>());
                          });
      if (is_written && !is_met)
        drop_keyword(where, others.is_array() ? "dependentRequired" : "dependentSchemas");
    });
  }

  template <class Use>
  static void for_each_dependent(const Parts& flat, Use use) {
    for (const Json* part : flat) {
      for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
        const Json* depends = member_of(*part, key);
        if (depends == nullptr || !depends->is_object()) continue;
        for (const auto& [name, others] : depends->items()) use(name, others);
      }
    }
  }

  bool may_be_named(const Parts& flat, const std::string& name, const std::string& where) {
    for (const Json* part : flat) {
      const Json* allowed = member_of(*part, "propertyNames");
      if (allowed == nullptr) continue;
      const auto holds = schema_holds(*allowed, Json(name), root_);
      if (!holds) drop_keyword(where, "propertyNames");
      if (holds == false) return false;
    }
    return true;
  }

  // The parts of `patterns` whose expression matches a name.
  Parts matching_patterns(const Json& patterns, const std::string& name, const std::string& where) {
    Parts parts;
    for (const auto& [source, described] : patterns.items()) {
      const auto pattern = SchemaPattern::parse(source);
      if (!pattern.ok()) drop_keyword(where, "patternProperties");
      if (pattern.ok() && pattern->matches(name)) parts.push_back(&described);
    }
    return parts;
  }

  Parts property_parts(const Parts& flat, const std::string& name, const std::string& where) {
    Parts parts;
    bool is_described = false;
    for (const Json* part : flat) {
      Parts own_parts;
      const Json* properties = member_of(*part, "properties");
      if (properties != nullptr && properties->is_object() && properties->contains(name))
        own_parts.push_back(&properties->at(name));
      if (const Json* patterns = member_of(*part, "patternProperties");
          patterns != nullptr && patterns->is_object()) {
        const Parts matching = matching_patterns(*patterns, name, where);
        own_parts.insert(own_parts.end(), matching.begin(), matching.end());
      }
      is_described = is_described || !own_parts.empty();
      if (const Json* additional = member_of(*part, "additionalProperties");
          own_parts.empty() && additional != nullptr) {
        own_parts.push_back(additional);
        is_described = true;
      }
      parts.insert(parts.end(), own_parts.begin(), own_parts.end());
    }
    for (const Json* part : flat) {
      if (const Json* other = member_of(*part, "unevaluatedProperties"); other != nullptr && !is_described)
        parts.push_back(other);
    }
    return parts;
  }

  static Parts other_property_parts(const Parts& flat) {
    Parts parts;
    for (const Json* part : flat) {
      for (const char* key : {"additionalProperties", "unevaluatedProperties"}) {
        if (const Json* other = member_of(*part, key)) parts.push_back(other);
      }
    }
    return parts;
  }

  // Whether properties that nobody names can be written. Of an object that names some, what others are called
  // is told apart character by character: not every character can be.
  bool may_be_open(const Parts& flat, const std::vector<std::string>& names, const std::string& where) {
    bool may_be = true;
    for (const Json* part : flat) {
      if (part->contains("patternProperties")) {
        drop_keyword(where, "patternProperties");
        may_be = may_be && !is_exact_;
      }
      const Json* allowed = member_of(*part, "propertyNames");
      if (allowed == nullptr || *allowed == true || *allowed == Json{{"type", "string"}} ||
          *allowed == anything())
        continue;
      if (!listed_values({allowed})) drop_keyword(where, "propertyNames");
      may_be = false;
    }
    return may_be && std::ranges::all_of(names, [](const std::string& name) {
             return !name.empty() && std::ranges::all_of(name, [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '$' || c == '.';
             });
           });
  }

  // False: no object has so many properties.
  bool hold_number_of_properties(const Parts& flat, bool is_open, const Json& properties,
                                 std::set<std::string>& required, const std::string& where) {
    const Counts counts = read_counts(flat, "minProperties", "maxProperties", where);
    if (counts.is_met_by_none() || (!is_open && std::ssize(properties) < counts.least) ||
        (counts.most >= 0 && std::ssize(required) > counts.most))
      return false;
    if (std::ssize(required) < counts.least) {
      if (!is_open && std::ssize(properties) == counts.least) {
        for (const auto& member : properties.items()) required.insert(member.key());
      } else {
        drop_keyword(where, "minProperties");
      }
    }
    if (counts.most >= 0 && (is_open || std::ssize(properties) > counts.most))
      drop_keyword(where, "maxProperties");
    return true;
  }

  static constexpr std::size_t kMaxLoosened = 8;

  const Json& root_;
  bool is_exact_;
  std::string name_;
  SchemaCost& cost_;
  Status status_;
  bool is_over_ = false;
  std::vector<std::string> loosened_;
  std::int64_t n_alternatives_ = 0;
  std::deque<Json> owned_;
  std::map<const Json*, const Json*> own_keywords_;
  std::map<Parts, std::string> definition_names_;
  std::map<std::string, Json> definitions_;
  // By name: that are written and nothing else has been since; that no value is of; that something refers to.
  std::set<std::string> unguarded_, empty_definitions_, used_definitions_;
};

}  // namespace

Result<HeldSchema> hold_schema(const Json& schema, const std::string& where, SchemaUse use,
                               const std::string& definitions, SchemaCost& cost) {
  if (!schema.is_object() && !schema.is_boolean()) return error("'{}' must be a JSON schema", where);
  const SchemaCost before = cost;
  auto held = SchemaHolder(schema, use, definitions, cost).hold(where);
  if (held.ok() && !held->loosened.empty() && held->schema == Json{{"type", "object"}}) cost = before;
  return held;
}

}  // namespace kvant
