// SchemaPattern is the regular expression of a `pattern` in a JSON schema (ECMA 262), as far as a grammar can
// enforce it. Look-around, back-references and inner anchors are not supported.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

class SchemaPattern {
 public:
  // Parses an expression, which may match any part of a string unless it begins with ^ and ends with $.
  // Returns an error if `source` is not a regular expression, or if a grammar cannot enforce it.
  static Result<SchemaPattern> parse(const std::string& source);
  // Returns a pattern for all strings of `least` to `most` characters. most < 0 means any length.
  static SchemaPattern any_string(std::int64_t least, std::int64_t most);

  // Returns whether the expression matches a UTF-8 string. Returns false if matching would take too much
  // work.
  bool matches(const std::string& text) const;
  // Restricts the pattern to strings of `least` to `most` characters (most < 0 means no limit). The
  // restriction adjusts the count of one part of the expression. Returns an error if no part allows that.
  Status bound_length(std::int64_t least, std::int64_t most);
  // Returns whether the pattern matches no string at all.
  bool is_empty() const { return choices_.empty(); }
  // Returns a pattern, from ^ to $, for the strings' JSON text with its escapes. llama.cpp's converter makes
  // rules from this syntax.
  std::string json_pattern() const;
  // Returns the approximate number of symbols in the pattern's grammar after repetitions are expanded.
  std::int64_t size() const;

 private:
  friend class PatternReader;
  using Range = std::pair<std::uint32_t, std::uint32_t>;  // characters, both ends included
  struct Node {
    enum class Kind : std::uint8_t { set, sequence, choice, repetition, begin, end };
    Kind kind = Kind::sequence;
    std::vector<Range> ranges;          // only for a set
    std::vector<Node> parts;            // only for kinds other than a set
    std::int64_t least = 0, most = -1;  // only for a repetition; most < 0 means no limit
  };
  struct Lengths {
    std::int64_t least = 0, most = 0;  // characters; most < 0 means no limit
  };
  class Matcher;

  static Lengths lengths(const Node& node);
  static std::string text(const Node& node);
  static std::vector<Node> alternatives(Node node);
  static void flatten(Node node, std::vector<Node>& parts);
  static std::int64_t size(const Node& node);

  std::vector<Node> choices_;  // each choice is a sequence without anchors that matches a whole string
};

}  // namespace kvant
