// SchemaHolder: writes a schema anew for hold_schema (held_schema.h), which says what comes of it.
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
// Optional properties of one object. All objects may have as many pairs of them as this number has.
inline constexpr std::int64_t kMaxOptional = 256;

class SchemaHolder {
 public:
  SchemaHolder(const Json& root, SchemaUse use, std::string definitions, SchemaCost& cost)
      : root_(root), is_exact_(use == SchemaUse::exact), name_(std::move(definitions)), cost_(cost) {}

  Result<HeldSchema> hold(const std::string& where);

 private:
  // --- what can't be held, references, a part (held_schema.cc) ---

  void fail(const std::string& where, const std::string& what);
  // An exact schema is refused; from one that is advice that part is left out.
  void drop(const std::string& where, const std::string& what);
  void drop_keyword(const std::string& where, const std::string& keyword);
  void too_much(const std::string& where);
  void charge(std::int64_t symbols);
  bool is_stopped() const { return is_over_ || !status_.ok(); }
  const Json* own(Json schema);
  // The parts that hold where `part` does, those of references and of allOf each by itself.
  void flatten(const Json* part, const std::string& where, Parts& flat, Parts& path, bool& follows_reference);
  // Those of them that say something by themselves.
  Parts flattened(const Parts& parts, const std::string& where, bool& follows_reference);
  // The schema of the values that all of `parts` describe; nothing: there are none.
  std::optional<Json> write(const Parts& parts, const std::string& where, int depth, bool is_root = false);
  // The same within a property or an item: a reference to what is around it leads on.
  std::optional<Json> write_inside(const Parts& parts, const std::string& where, int depth);
  std::optional<Json> write_flat(const Parts& flat, const std::string& where, int depth);
  std::optional<Json> write_values(const std::vector<Json>& values, const Parts& flat,
                                   const std::string& where);

  // --- anyOf, oneOf (held_choices.cc) ---

  // What a part says itself. What its references and lists lead to is followed from elsewhere.
  const Json* own_keywords(const Json* part);
  std::optional<Json> write_choices(const Parts& flat, const std::vector<const Json*>& choices,
                                    const std::string& where, int depth);
  // A oneOf whose alternatives all list their values: those that one of them lists alone.
  std::optional<std::optional<Json>> write_listed_choice(const Json& one_of, const Parts& flat,
                                                         const std::string& where);
  struct Outline;
  Outline outline(Parts parts, const Json& alternative, bool is_all, const std::string& where);
  void outline_object(const Json& part, const std::string& where, Outline& seen);
  // Whether no value that is written for `one` is of `other`.
  static bool excludes(const Outline& one, const Outline& other);
  // is_all: there are no other choices beside this one.
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
  // limit: of what a grammar can count.
  Counts read_counts(const Parts& flat, const char* least_key, const char* most_key, const std::string& where,
                     std::int64_t limit = kMaxGrammarRepetitions);
  std::optional<Json> write_string(const Parts& flat, const std::string& where);
  void add_pattern(const std::string& text, const char* key, const std::string& where,
                   std::optional<SchemaPattern>& pattern, std::string& source);

  // --- arrays, objects (held_collections.cc) ---

  std::optional<Json> write_array(const Parts& flat, const std::string& where, int depth);
  void check_array_keywords(const Json& part, const Counts& counts, const std::string& where);
  // Has all items that are described one by one, and no more than have to be.
  std::optional<Json> write_tuple(const Parts& flat, const Counts& counts, std::int64_t n_first,
                                  bool describes_rest, const std::string& where, int depth);
  std::optional<Json> write_object(const Parts& flat, const std::string& where, int depth);
  void read_names(const Json& part, const std::string& where, std::vector<std::string>& names,
                  std::set<std::string>& required);
  // What properties bring with them, where they have to be there themselves.
  void add_dependents(const Parts& flat, const std::vector<std::string>& names,
                      std::set<std::string>& required, const std::string& where);
  bool may_be_named(const Parts& flat, const std::string& name, const std::string& where);
  // The parts of `patterns` whose expression matches a name.
  Parts matching_patterns(const Json& patterns, const std::string& name, const std::string& where);
  Parts property_parts(const Parts& flat, const std::string& name, const std::string& where);
  // Whether properties that nobody names can be written. Of an object that names some, what others are called
  // is told apart character by character: not every character can be.
  bool may_be_open(const Parts& flat, const std::vector<std::string>& names, const std::string& where);
  // False: no object has so many properties.
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
  // By name: that are written and nothing else has been since; that no value is of; that something refers to.
  std::set<std::string> unguarded_, empty_definitions_, used_definitions_;
};

}  // namespace kvant::schema
