// SchemaPattern is the regular expression of a 'pattern' in a JSON schema (ECMA 262), as far as a grammar can
// enforce it: without look-around, back-references and inner anchors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace kvant {

class SchemaPattern {
 public:
  // Parses an expression. It matches a part of a string unless it begins with ^ and ends with $. Errors: it
  // is no regular expression, or a grammar cannot enforce it.
  static Result<SchemaPattern> parse(const std::string& source);
  // Matches strings of `least` to `most` characters; most < 0: any length.
  static SchemaPattern any_string(std::int64_t least, std::int64_t most);

  // Returns whether the expression matches a UTF-8 string. It returns false if that takes too much work.
  bool matches(const std::string& text) const;
  // Keeps only strings of `least` to `most` characters (most < 0: no limit). Error: no single part of the
  // expression can take up the difference in length.
  Status bound_length(std::int64_t least, std::int64_t most);
  // Returns whether no string is left.
  bool is_empty() const { return choices_.empty(); }
  // Returns the pattern from ^ to $ of the strings' JSON text, with JSON escapes, in the syntax from which
  // llama.cpp makes rules.
  std::string json_pattern() const;
  // Returns about how many symbols its grammar has with repetitions written out.
  std::int64_t size() const;

 private:
  friend class PatternReader;
  using Range = std::pair<std::uint32_t, std::uint32_t>;  // of characters, both ends included
  struct Node {
    enum class Kind : std::uint8_t { set, sequence, choice, repetition, begin, end };
    Kind kind = Kind::sequence;
    std::vector<Range> ranges;          // for a set
    std::vector<Node> parts;            // for other kinds
    std::int64_t least = 0, most = -1;  // for a repetition; most < 0: no limit
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

  std::vector<Node> choices_;  // sequences without anchors that each match a whole string
};

}  // namespace kvant
