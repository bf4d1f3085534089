#include "serve/schema_holder.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/schema_values.h"

namespace kvant::schema {
namespace {

// llama.cpp's converter names grammar rules after properties. The converter's regular expressions recurse
// once per character, so long names could overflow the stack.
constexpr std::size_t kMaxPropertyBytes = 256;

const Json* first_items(const Json& part) {
  const Json* first = member_of(part, "prefixItems");
  if (first == nullptr) first = member_of(part, "items");
  return first != nullptr && first->is_array() ? first : nullptr;
}

const Json* other_items(const Json& part) {
  const Json* items = member_of(part, "items");
  return items != nullptr && items->is_array() ? member_of(part, "additionalItems") : items;
}

Parts item_parts(const Parts& flat, std::int64_t index) {
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

template <class Use>
void for_each_dependent(const Parts& flat, Use use) {
  for (const Json* part : flat) {
    for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
      const Json* depends = member_of(*part, key);
      if (depends == nullptr || !depends->is_object()) continue;
      for (const auto& [name, others] : depends->items()) use(name, others);
    }
  }
}

Parts other_property_parts(const Parts& flat) {
  Parts parts;
  for (const Json* part : flat) {
    for (const char* key : {"additionalProperties", "unevaluatedProperties"}) {
      if (const Json* other = member_of(*part, key)) parts.push_back(other);
    }
  }
  return parts;
}

}  // namespace

std::optional<Json> SchemaHolder::write_array(const Parts& flat, const std::string& where, int depth) {
  Counts counts = read_counts(flat, "minItems", "maxItems", where);
  std::int64_t n_first = 0;  // the number of items that have a schema each
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

void SchemaHolder::check_array_keywords(const Json& part, const Counts& counts, const std::string& where) {
  if (part.contains("contains")) drop_keyword(where, "contains");
  const Json* unique = member_of(part, "uniqueItems");
  if (unique != nullptr && *unique != false && (counts.most < 0 || counts.most > 1))
    drop_keyword(where, "uniqueItems");
  const Json* other = member_of(part, "unevaluatedItems");
  if (other != nullptr && *other != true && !part.contains("items") && first_items(part) == nullptr)
    drop_keyword(where, "unevaluatedItems");
}

std::optional<Json> SchemaHolder::write_tuple(const Parts& flat, const Counts& counts, std::int64_t n_first,
                                              bool describes_rest, const std::string& where, int depth) {
  std::int64_t length = std::max(n_first, counts.least);
  if (counts.most >= 0) length = std::min(length, counts.most);
  if (length > n_first + kMaxOptional) {
    drop_keyword(where, "minItems' together with 'prefixItems");
    length = n_first;
  }
  if (describes_rest && (counts.most < 0 || counts.most > length))
    drop_keyword(where, "items' together with 'prefixItems");
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

std::optional<Json> SchemaHolder::write_object(const Parts& flat, const std::string& where, int depth) {
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
    std::optional<Json> property = may_be_named(flat, name, where)
                                       ? write_inside(property_parts(flat, name, where),
                                                      fmt::format("{}.properties.{}", where, name), depth)
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
  std::optional<Json> other =
      is_open && !is_stopped() ? write_inside(other_property_parts(flat), where + ".*", depth) : std::nullopt;
  const bool is_any = properties.empty() && other && other->empty();
  if (is_any) return held;
  if (!properties.empty()) held["properties"] = properties;
  if (!required.empty()) held["required"] = required;
  held["additionalProperties"] = !other ? Json(false) : other->empty() ? Json(true) : *other;
  return held;
}

void SchemaHolder::read_names(const Json& part, const std::string& where, std::vector<std::string>& names,
                              std::set<std::string>& required) {
  if (const Json* properties = member_of(part, "properties")) {
    if (!properties->is_object()) drop(where, "has 'properties' that are not an object");
    for (const auto& [name, described] : properties->items()) {
      if (properties->is_object() && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  if (const Json* list = member_of(part, "required")) {
    if (!list->is_array()) return drop(where, "has a 'required' that is not a list of names");
    for (const Json& name : *list) {
      if (name.is_string()) {
        required.insert(name.get<std::string>());
      } else {
        drop(where, "has a 'required' that is not a list of names");
      }
    }
  }
  // A schema whose propertyNames lists the allowed names is treated as an object with these properties.
  const Json* allowed = member_of(part, "propertyNames");
  if (allowed == nullptr || part.contains("properties")) return;
  if (const auto values = listed_values({allowed})) {
    for (const Json& name : *values) {
      if (name.is_string() && std::ranges::find(names, name.get<std::string>()) == names.end())
        names.push_back(name.get<std::string>());
    }
  }
}

void SchemaHolder::add_dependents(const Parts& flat, const std::vector<std::string>& names,
                                  std::set<std::string>& required, const std::string& where) {
  for (std::size_t round = 0, before = std::string::npos; before != required.size() && round < 64; ++round) {
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

bool SchemaHolder::may_be_named(const Parts& flat, const std::string& name, const std::string& where) {
  for (const Json* part : flat) {
    const Json* allowed = member_of(*part, "propertyNames");
    if (allowed == nullptr) continue;
    const auto holds = schema_holds(*allowed, Json(name), root_);
    if (!holds) drop_keyword(where, "propertyNames");
    if (holds == false) return false;
  }
  return true;
}

Parts SchemaHolder::matching_patterns(const Json& patterns, const std::string& name,
                                      const std::string& where) {
  Parts parts;
  for (const auto& [source, described] : patterns.items()) {
    const auto pattern = SchemaPattern::parse(source);
    if (!pattern.ok()) drop_keyword(where, "patternProperties");
    if (pattern.ok() && pattern->matches(name)) parts.push_back(&described);
  }
  return parts;
}

Parts SchemaHolder::property_parts(const Parts& flat, const std::string& name, const std::string& where) {
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

bool SchemaHolder::may_be_open(const Parts& flat, const std::vector<std::string>& names,
                               const std::string& where) {
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
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                    c == '$' || c == '.';
           });
         });
}

bool SchemaHolder::hold_number_of_properties(const Parts& flat, bool is_open, const Json& properties,
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

}  // namespace kvant::schema
