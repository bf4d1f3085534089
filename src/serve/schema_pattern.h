// SchemaPattern: the regular expression of a 'pattern' in a JSON schema (ECMA 262), as far as a grammar can
// hold a string to it: no look-around, no back-references, no anchors inside.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

class SchemaPattern {
 public:
  // An expression matches a part of a string unless it begins with ^ and ends with $. Errors: it is no
  // regular expression, or one that a grammar can't hold a string to.
  static Result<SchemaPattern> parse(const std::string& source);
  // Strings of `least` to `most` characters; most < 0: of any length.
  static SchemaPattern any_string(std::int64_t least, std::int64_t most);

  // Whether the expression matches a string of UTF-8. False where that takes too much work.
  bool matches(const std::string& text) const;
  // Leaves the strings of `least` to `most` characters (most < 0: no limit). Errors: the expression has no
  // single place that can take up the difference in length.
  Status bound_length(std::int64_t least, std::int64_t most);
  // Whether no string is left.
  bool is_empty() const { return choices_.empty(); }
  // The pattern from ^ to $ of the strings' JSON text, in the syntax that llama.cpp makes rules from. What
  // has to be escaped in JSON is escaped.
  std::string json_pattern() const;
  // By and large how many symbols the grammar of it has, with repetitions written out.
  std::int64_t size() const;

 private:
  friend class PatternReader;
  using Range = std::pair<std::uint32_t, std::uint32_t>;  // of characters, both ends included
  struct Node {
    enum class Kind : std::uint8_t { set, sequence, choice, repetition, begin, end };
    Kind kind = Kind::sequence;
    std::vector<Range> ranges;          // of a set
    std::vector<Node> parts;            // of the others
    std::int64_t least = 0, most = -1;  // of a repetition; most < 0: no limit
  };
  struct Lengths {
    std::int64_t least = 0, most = 0;  // in characters; most < 0: no limit
  };
  class Matcher;

  static Lengths lengths(const Node& node);
  static std::string text(const Node& node);
  static std::vector<Node> alternatives(Node node);
  static void flatten(Node node, std::vector<Node>& parts);
  static std::int64_t size(const Node& node);

  std::vector<Node> choices_;  // sequences without anchors, each of a whole string
};

}  // namespace kvant
