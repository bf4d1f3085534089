#include "serve/held_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/schema_holder.h"
#include "serve/schema_values.h"

namespace kvant::schema {
namespace {

constexpr std::int64_t kMaxSchemaParts = 8192;
constexpr int kMaxHeldDepth = 96;  // the walk recurses once per level of nesting

}  // namespace

Result<HeldSchema> SchemaHolder::hold(const std::string& where) {
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

void SchemaHolder::fail(const std::string& where, const std::string& what) {
  if (status_.ok()) status_ = error("'{}' {}", where.substr(0, 200), what);
}

void SchemaHolder::drop(const std::string& where, const std::string& what) {
  if (is_exact_) return fail(where, what);
  if (loosened_.size() < kMaxLoosened)
    loosened_.push_back(fmt::format("'{}' {}", where.substr(0, 200), what));
}

void SchemaHolder::drop_keyword(const std::string& where, const std::string& keyword) {
  drop(where, fmt::format("has '{}', which is not supported here: leave it out", keyword));
}

void SchemaHolder::too_much(const std::string& where) {
  drop(where, fmt::format("is too large: the schemas of a request may have {} parts, {} optional properties "
                          "in one object and {} in four, and {} symbols in names, values and patterns",
                          kMaxSchemaParts, kMaxOptional, kMaxOptional / 2, kMaxSymbols));
}

void SchemaHolder::charge(std::int64_t symbols) {
  ++cost_.parts;
  cost_.symbols += symbols;
  is_over_ = is_over_ || cost_.parts > kMaxSchemaParts || cost_.symbols > kMaxSymbols ||
             cost_.optional_pairs > kMaxOptional * kMaxOptional;
}

const Json* SchemaHolder::own(Json schema) {
  owned_.push_back(std::move(schema));
  return &owned_.back();
}

void SchemaHolder::flatten(const Json* part, const std::string& where, Parts& flat, Parts& path,
                           bool& follows_reference) {
  if (is_stopped() || *part == true || std::ranges::find(flat, part) != flat.end()) return;
  if (is_nothing(*part)) {
    flat.push_back(&nothing());
    return;
  }
  if (!part->is_object())
    return drop(where, "has a part that is not a schema: " +
                           part->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40));
  if (path.size() > kMaxHeldDepth) return drop(where, "has references that lead too far");
  flat.push_back(part);
  path.push_back(part);
  if (const Json* reference = member_of(*part, "$ref")) {
    follows_reference = true;
    const Json* target = reference->is_string() ? schema_part(root_, reference->get<std::string>()) : nullptr;
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

Parts SchemaHolder::flattened(const Parts& parts, const std::string& where, bool& follows_reference) {
  Parts flat, path;
  for (const Json* part : parts) flatten(part, where, flat, path, follows_reference);
  std::erase_if(flat, [](const Json* part) { return part->is_object() && !says_something(*part); });
  return flat;
}

std::optional<Json> SchemaHolder::write(const Parts& parts, const std::string& where, int depth,
                                        bool is_root) {
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

std::optional<Json> SchemaHolder::write_inside(const Parts& parts, const std::string& where, int depth) {
  std::set<std::string> unguarded;
  unguarded.swap(unguarded_);
  auto held = write(parts, where, depth + 1);
  unguarded_.swap(unguarded);
  return held;
}

std::optional<Json> SchemaHolder::write_flat(const Parts& flat, const std::string& where, int depth) {
  if (std::ranges::find(flat, &nothing()) != flat.end()) return std::nullopt;
  if (const auto values = listed_values(flat)) return write_values(*values, flat, where);
  std::vector<const Json*> choices;
  for (const Json* part : flat) {
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json* choice = member_of(*part, key);
      if (choice == nullptr) continue;
      if (!choice->is_array() || choice->empty()) {
        drop(where, fmt::format("has '{}' that is not a list of schemas", key));
      } else {
        choices.push_back(choice);
      }
    }
  }
  if (is_stopped()) return Json::object();
  return choices.empty() ? write_types(flat, where, depth) : write_choices(flat, choices, where, depth);
}

std::optional<Json> SchemaHolder::write_values(const std::vector<Json>& values, const Parts& flat,
                                               const std::string& where) {
  Json kept = Json::array();
  std::set<std::string> texts;
  for (const Json& value : values) {
    bool holds = true;
    for (const Json* part : flat) {
      const auto one = schema_holds(*part, value, root_);
      if (!one) {
        drop(where,
             "lists values together with a keyword that can't be checked for them: leave out one of both");
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

}  // namespace kvant::schema

namespace kvant {

Result<HeldSchema> hold_schema(const nlohmann::ordered_json& schema, const std::string& where, SchemaUse use,
                               const std::string& definitions, SchemaCost& cost) {
  if (!schema.is_object() && !schema.is_boolean()) return error("'{}' must be a JSON schema", where);
  const SchemaCost before = cost;
  auto held = schema::SchemaHolder(schema, use, definitions, cost).hold(where);
  if (held.ok() && !held->loosened.empty() && held->schema == nlohmann::ordered_json{{"type", "object"}})
    cost = before;
  return held;
}

}  // namespace kvant
