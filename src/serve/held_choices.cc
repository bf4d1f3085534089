#include "serve/schema_holder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "serve/schema_values.h"

namespace kvant::schema {
namespace {

constexpr std::int64_t kMaxChoices = 2048;

}  // namespace

// Outline holds the facts that distinguish one alternative of a schema from the others.
struct SchemaHolder::Outline {
  unsigned stated = kAnyType;     // the types that the alternative allows
  unsigned generated = kAnyType;  // the grammar generates text only for these types
  std::optional<std::vector<Json>> values;
  std::set<std::string> properties, required;
  bool has_additional = false;                      // the grammar generates properties that the alternative
                                                    // does not name
  bool forbids_others = false;                      // a property that the alternative does not name makes a
                                                    // value invalid
  std::map<std::string, std::vector<Json>> listed;  // the listed values of each property
  double low = -std::numeric_limits<double>::infinity(), high = -low;
};

const Json* SchemaHolder::own_keywords(const Json* part) {
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

std::optional<Json> SchemaHolder::write_choices(const Parts& flat, const std::vector<const Json*>& choices,
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
      drop(where, fmt::format("has more than {} alternatives", kMaxChoices));
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

std::optional<std::optional<Json>> SchemaHolder::write_listed_choice(const Json& one_of, const Parts& flat,
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

SchemaHolder::Outline SchemaHolder::outline(Parts parts, const Json& alternative, bool is_all,
                                            const std::string& where) {
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
    // Each of these keywords may name further properties.
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

void SchemaHolder::outline_object(const Json& part, const std::string& where, Outline& seen) {
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

bool SchemaHolder::excludes(const Outline& one, const Outline& other) {
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

void SchemaHolder::check_disjoint(const Json& one_of, const Parts& beside, bool is_all,
                                  const std::string& where) {
  std::vector<Outline> outlines;
  if (std::ssize(one_of) > kMaxOptional)
    return drop(where, "has a 'oneOf' of too many alternatives: use 'anyOf'");
  for (const Json& one : one_of) outlines.push_back(outline(beside, one, is_all, where));
  for (std::size_t i = 0; i < outlines.size(); ++i) {
    for (std::size_t j = 0; j < outlines.size(); ++j) {
      if (i == j || is_nothing(one_of[i]) || is_nothing(one_of[j]) || excludes(outlines[i], outlines[j]))
        continue;
      return drop(where, fmt::format("has a 'oneOf' with overlapping alternatives ({} and {}): use 'anyOf', "
                                     "or tell them apart by a required property with a 'const'",
                                     i, j));
    }
  }
}

}  // namespace kvant::schema
