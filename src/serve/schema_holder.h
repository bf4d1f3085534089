// SchemaHolder rewrites a schema for hold_schema(). held_schema.h describes the result. The class is split
// over several files by kinds of keywords.
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
// An object may have at most this many optional properties. All objects of a request may together have as
// many pairs of optional properties as one object of that size.
inline constexpr std::int64_t kMaxOptional = 256;

class SchemaHolder {
 public:
  SchemaHolder(const Json& root, SchemaUse use, std::string definitions, SchemaCost& cost)
      : root_(root), is_exact_(use == SchemaUse::exact), name_(std::move(definitions)), cost_(cost) {}

  Result<HeldSchema> hold(const std::string& where);

 private:
  // The functions from fail() to write_values() handle demands that no grammar can enforce, references, and
  // single parts (held_schema.cc).

  void fail(const std::string& where, const std::string& what);
  // Handles a part that no grammar can enforce. With SchemaUse::exact, the schema is refused. With
  // SchemaUse::advice, the schema loses the part.
  void drop(const std::string& where, const std::string& what);
  void drop_keyword(const std::string& where, const std::string& keyword);
  void too_much(const std::string& where);
  void charge(std::int64_t symbols);
  bool is_stopped() const { return is_over_ || !status_.ok(); }
  const Json* own(Json schema);
  // Adds to `flat` all parts that a value of `part` must match. References and allOf become separate parts.
  void flatten(const Json* part, const std::string& where, Parts& flat, Parts& path, bool& follows_reference);
  // Flattens several parts like flatten(), but returns only parts that have their own keywords.
  Parts flattened(const Parts& parts, const std::string& where, bool& follows_reference);
  // Returns a schema for the values that match all of `parts`, or nothing if no value matches.
  std::optional<Json> write(const Parts& parts, const std::string& where, int depth, bool is_root = false);
  // Returns a schema like write(), for a property or an item. There, a reference to an enclosing part is
  // recursion and not an endless loop.
  std::optional<Json> write_inside(const Parts& parts, const std::string& where, int depth);
  std::optional<Json> write_flat(const Parts& flat, const std::string& where, int depth);
  std::optional<Json> write_values(const std::vector<Json>& values, const Parts& flat,
                                   const std::string& where);

  // The functions from own_keywords() to check_disjoint() handle anyOf and oneOf (held_choices.cc).

  // Returns the part without its references and its lists of alternatives, which other functions follow.
  const Json* own_keywords(const Json* part);
  std::optional<Json> write_choices(const Parts& flat, const std::vector<const Json*>& choices,
                                    const std::string& where, int depth);
  // Handles a oneOf whose alternatives all list their values. Returns a schema for the values that exactly
  // one alternative lists, or nothing if `one_of` is of another kind.
  std::optional<std::optional<Json>> write_listed_choice(const Json& one_of, const Parts& flat,
                                                         const std::string& where);
  struct Outline;
  Outline outline(Parts parts, const Json& alternative, bool is_all, const std::string& where);
  void outline_object(const Json& part, const std::string& where, Outline& seen);
  // Returns whether no value that the grammar generates for `one` matches `other`.
  static bool excludes(const Outline& one, const Outline& other);
  // Checks that no generated value matches two alternatives of a oneOf. is_all says that every value must
  // match one of the alternatives.
  void check_disjoint(const Json& one_of, const Parts& beside, bool is_all, const std::string& where);

  // The functions from stated_types() to add_pattern() handle types, numbers, counts and strings
  // (held_values.cc).

  unsigned stated_types(const Json& part, const std::string& where, bool reports = true);
  std::optional<Json> write_types(const Parts& flat, const std::string& where, int depth);
  unsigned denied_types(const Json& part, const std::string& where);
  std::optional<Json> write_number(const Parts& flat, bool may_be_fraction, const std::string& where);
  void bound_number(const Json& part, bool may_be_fraction, const std::string& where, long double& low,
                    long double& high);
  std::optional<Json> write_integer(long double low, long double high, const std::vector<double>& multiples,
                                    const std::string& where);
  struct Counts {
    std::int64_t least = 0, most = -1;  // most < 0 means no limit
    bool is_met_by_none() const { return most >= 0 && least > most; }
  };
  // Reads the smallest and the largest count that all parts allow. `limit` is the largest count that a
  // grammar can have.
  Counts read_counts(const Parts& flat, const char* least_key, const char* most_key, const std::string& where,
                     std::int64_t limit = kMaxGrammarRepetitions);
  std::optional<Json> write_string(const Parts& flat, const std::string& where);
  void add_pattern(const std::string& text, const char* key, const std::string& where,
                   std::optional<SchemaPattern>& pattern, std::string& source);

  // The functions from write_array() to hold_number_of_properties() handle arrays and objects
  // (held_collections.cc).

  std::optional<Json> write_array(const Parts& flat, const std::string& where, int depth);
  void check_array_keywords(const Json& part, const Counts& counts, const std::string& where);
  // Writes an array whose first n_first items each have a schema. The first n_first items are always
  // generated, and further items only if required.
  std::optional<Json> write_tuple(const Parts& flat, const Counts& counts, std::int64_t n_first,
                                  bool describes_rest, const std::string& where, int depth);
  std::optional<Json> write_object(const Parts& flat, const std::string& where, int depth);
  void read_names(const Json& part, const std::string& where, std::vector<std::string>& names,
                  std::set<std::string>& required);
  // Adds properties that become required because other required properties demand them.
  void add_dependents(const Parts& flat, const std::vector<std::string>& names,
                      std::set<std::string>& required, const std::string& where);
  bool may_be_named(const Parts& flat, const std::string& name, const std::string& where);
  // Returns the schemas in `patterns` whose regular expression matches `name`.
  Parts matching_patterns(const Json& patterns, const std::string& name, const std::string& where);
  Parts property_parts(const Parts& flat, const std::string& name, const std::string& where);
  // Returns whether an object may have generated properties beyond the named properties. The grammar
  // distinguishes other names from the given names character by character, which is not possible for some
  // characters.
  bool may_be_open(const Parts& flat, const std::vector<std::string>& names, const std::string& where);
  // Enforces the required number of properties. Returns false if no object can have that number.
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
  // unguarded_, empty_definitions_ and used_definitions_ hold names of definitions. unguarded_ has
  // definitions that are being written and have generated nothing yet, so a reference to one would be an
  // endless loop. empty_definitions_ has definitions that no value matches, and used_definitions_ has
  // definitions that a reference uses.
  std::set<std::string> unguarded_, empty_definitions_, used_definitions_;
};

}  // namespace kvant::schema
