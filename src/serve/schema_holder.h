// SchemaHolder rewrites a schema for hold_schema; held_schema.h describes the result.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/grammar_rules.h"
#include "serve/held_schema.h"
#include "serve/schema_keywords.h"
#include "serve/schema_pattern.h"

namespace kvant::schema {

inline constexpr std::int64_t kMaxSymbols = 60'000;
// This limits the optional properties of one object. All objects together may have as many pairs as an object
// with this number.
inline constexpr std::int64_t kMaxOptional = 256;

class SchemaHolder {
 public:
  SchemaHolder(const Json& root, SchemaUse use, std::string definitions, SchemaCost& cost)
      : root_(root), is_exact_(use == SchemaUse::exact), name_(std::move(definitions)), cost_(cost) {}

  Result<HeldSchema> hold(const std::string& where);

 private:
  // --- what can't be held, references, a part (held_schema.cc) ---

  void fail(const std::string& where, const std::string& what);
  // Drops a part that cannot be enforced. An exact schema is refused; one that is advice loses the part.
  void drop(const std::string& where, const std::string& what);
  void drop_keyword(const std::string& where, const std::string& keyword);
  void too_much(const std::string& where);
  void charge(std::int64_t symbols);
  bool is_stopped() const { return is_over_ || !status_.ok(); }
  const Json* own(Json schema);
  // Collects the parts that hold where `part` holds. References and allOf become separate parts.
  void flatten(const Json* part, const std::string& where, Parts& flat, Parts& path, bool& follows_reference);
  // Returns only the parts that have keywords of their own.
  Parts flattened(const Parts& parts, const std::string& where, bool& follows_reference);
  // Returns the schema of the values that match all of `parts`, or nothing if no value does.
  std::optional<Json> write(const Parts& parts, const std::string& where, int depth, bool is_root = false);
  // Does the same inside a property or an item, where a reference to an enclosing part is not a loop.
  std::optional<Json> write_inside(const Parts& parts, const std::string& where, int depth);
  std::optional<Json> write_flat(const Parts& flat, const std::string& where, int depth);
  std::optional<Json> write_values(const std::vector<Json>& values, const Parts& flat,
                                   const std::string& where);

  // --- anyOf, oneOf (held_choices.cc) ---

  // Returns a part's own keywords, without references and lists, which are followed elsewhere.
  const Json* own_keywords(const Json* part);
  std::optional<Json> write_choices(const Parts& flat, const std::vector<const Json*>& choices,
                                    const std::string& where, int depth);
  // For a oneOf whose alternatives all list their values, returns the values that exactly one of them lists.
  std::optional<std::optional<Json>> write_listed_choice(const Json& one_of, const Parts& flat,
                                                         const std::string& where);
  struct Outline;
  Outline outline(Parts parts, const Json& alternative, bool is_all, const std::string& where);
  void outline_object(const Json& part, const std::string& where, Outline& seen);
  // Returns whether no value that is generated for `one` matches `other`.
  static bool excludes(const Outline& one, const Outline& other);
  // is_all: this is the only choice.
  void check_disjoint(const Json& one_of, const Parts& beside, bool is_all, const std::string& where);

  // --- types, numbers, counts, strings (held_values.cc) ---

  unsigned stated_types(const Json& part, const std::string& where, bool reports = true);
  std::optional<Json> write_types(const Parts& flat, const std::string& where, int depth);
  unsigned denied_types(const Json& part, const std::string& where);
  std::optional<Json> write_number(const Parts& flat, bool may_be_fraction, const std::string& where);
  void bound_number(const Json& part, bool may_be_fraction, const std::string& where, long double& low,
                    long double& high);
  std::optional<Json> write_integer(long double low, long double high, const std::vector<double>& multiples,
                                    const std::string& where);
  struct Counts {
    std::int64_t least = 0, most = -1;  // most < 0: no limit
    bool is_met_by_none() const { return most >= 0 && least > most; }
  };
  // `limit` is the largest count in a grammar.
  Counts read_counts(const Parts& flat, const char* least_key, const char* most_key, const std::string& where,
                     std::int64_t limit = kMaxGrammarRepetitions);
  std::optional<Json> write_string(const Parts& flat, const std::string& where);
  void add_pattern(const std::string& text, const char* key, const std::string& where,
                   std::optional<SchemaPattern>& pattern, std::string& source);

  // --- arrays, objects (held_collections.cc) ---

  std::optional<Json> write_array(const Parts& flat, const std::string& where, int depth);
  void check_array_keywords(const Json& part, const Counts& counts, const std::string& where);
  // Writes an array with all items that are described one by one, and no more than required.
  std::optional<Json> write_tuple(const Parts& flat, const Counts& counts, std::int64_t n_first,
                                  bool describes_rest, const std::string& where, int depth);
  std::optional<Json> write_object(const Parts& flat, const std::string& where, int depth);
  void read_names(const Json& part, const std::string& where, std::vector<std::string>& names,
                  std::set<std::string>& required);
  // Adds what required properties demand of other properties.
  void add_dependents(const Parts& flat, const std::vector<std::string>& names,
                      std::set<std::string>& required, const std::string& where);
  bool may_be_named(const Parts& flat, const std::string& name, const std::string& where);
  // Returns the parts of `patterns` whose expression matches a name.
  Parts matching_patterns(const Json& patterns, const std::string& name, const std::string& where);
  Parts property_parts(const Parts& flat, const std::string& name, const std::string& where);
  // Returns whether unnamed properties can be generated. If an object names some properties, other names are
  // told apart character by character, which some characters do not allow.
  bool may_be_open(const Parts& flat, const std::vector<std::string>& names, const std::string& where);
  // Returns false if no object has that many properties.
  bool hold_number_of_properties(const Parts& flat, bool is_open, const Json& properties,
                                 std::set<std::string>& required, const std::string& where);

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
  // Definitions by name: written, with nothing generated since; without any valid value; referred to.
  std::set<std::string> unguarded_, empty_definitions_, used_definitions_;
};

}  // namespace kvant::schema
