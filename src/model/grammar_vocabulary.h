// GrammarVocabulary: the tokens that may come next by a grammar. Their texts are a tree, byte by byte, so
// that what many begin with is followed once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/grammar_matcher.h"

struct llama_vocab;

namespace kvant {

// Where a text stands: in the middle of a character, maybe.
struct GrammarPosition {
  GrammarStates states = kNoStates;
  std::uint32_t character = 0;  // the bits that have come of it
  int bytes_left = 0;           // of it
  std::uint32_t least = 0;      // of the characters that take so many bytes
};

class GrammarVocabulary {
 public:
  // The vocabulary outlives it. One for all grammars of a model: it takes some milliseconds.
  static std::shared_ptr<const GrammarVocabulary> of(const llama_vocab* vocabulary);
  explicit GrammarVocabulary(const llama_vocab* vocabulary);

  std::size_t size() const { return texts_.size(); }
  // The text of a token as it counts for grammars; empty: no grammar can have it.
  const std::string& text(std::int32_t token) const { return texts_[token]; }
  bool ends(std::int32_t token) const { return ends_[token]; }
  // Sets those that may come next, of [tokens].
  void allow(GrammarMatcher& matcher, const GrammarPosition& at, std::vector<bool>& allowed) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;
    std::vector<std::int32_t> tokens;  // that end here
  };
  void walk(GrammarMatcher& matcher, const GrammarPosition& at, int node, std::vector<bool>& allowed) const;

  std::vector<std::string> texts_;
  std::vector<bool> ends_;
  std::vector<Node> tree_;
};

// After one more byte of a text; none: it can't come.
std::optional<GrammarPosition> follow_byte(GrammarMatcher& matcher, const GrammarPosition& at,
                                           unsigned char byte);
std::optional<GrammarPosition> follow_text(GrammarMatcher& matcher, GrammarPosition at,
                                           std::string_view text);

}  // namespace kvant
