// What a JSON schema's references lead to, and what the schema comes to when llama.cpp makes rules of it. It
// writes a reference's part once, but those in an allOf each time, and it looks through alternatives one by
// one.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace kvant {

// How often parts become rules.
struct SchemaSize {
  std::int64_t parts = 0;           // lists of types multiplied
  std::int64_t optional_pairs = 0;  // of optional properties of an object: there are rules for each pair

  void add(const SchemaSize& other, std::int64_t times = 1);
};

class SchemaReferences {
 public:
  using Json = nlohmann::ordered_json;

  // root: of the schema; it outlives this.
  explicit SchemaReferences(const Json& root) : root_(root) {}

  // What is wrong with a reference; empty: nothing.
  static std::string fault(const Json& reference, const Json& root);
  // What rules of a part of that name (behind #/$defs/, say) are called: of all other characters it makes a
  // dash.
  static std::string rule_name(const std::string& section, const std::string& name);

  // References must be without faults. -1: they lead back to themselves before anything else comes.
  std::int64_t alternatives(const Json& schema);
  // parts of -1: an allOf has itself among its parts.
  SchemaSize size(const Json& schema);

 private:
  const Json& target(const Json& reference) const;
  SchemaSize merged_size(const Json& parts);

  const Json& root_;
  // By reference; -1 while they are counted.
  std::map<std::string, std::int64_t> alternatives_;
  std::map<std::string, SchemaSize> sizes_;
};

}  // namespace kvant
