// GrammarVocabulary finds the tokens that a grammar allows next. Their texts form a tree of bytes, so a
// common prefix is followed once.
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

// Marks a position in a text, possibly in the middle of a character.
struct GrammarPosition {
  GrammarStates states = kNoStates;
  std::uint32_t character = 0;  // the bits of the character so far
  int bytes_left = 0;           // bytes of the character to come
  std::uint32_t least = 0;      // smallest character with that many bytes
};

class GrammarVocabulary {
 public:
  // The vocabulary must outlive it. All grammars of a model share one, because it takes some milliseconds to
  // make.
  static std::shared_ptr<const GrammarVocabulary> of(const llama_vocab* vocabulary);
  explicit GrammarVocabulary(const llama_vocab* vocabulary);

  std::size_t size() const { return texts_.size(); }
  // Returns the text of a token for grammars; empty: no grammar can contain it.
  const std::string& text(std::int32_t token) const { return texts_[token]; }
  bool ends(std::int32_t token) const { return ends_[token]; }
  // Sets the entries of tokens that may come next, of [tokens].
  void allow(GrammarMatcher& matcher, const GrammarPosition& at, std::vector<bool>& allowed) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;
    std::vector<std::int32_t> tokens;  // tokens that end here
  };
  void walk(GrammarMatcher& matcher, const GrammarPosition& at, int node, std::vector<bool>& allowed) const;

  std::vector<std::string> texts_;
  std::vector<bool> ends_;
  std::vector<Node> tree_;
};

// Returns the position after one more byte, or nothing if it cannot come.
std::optional<GrammarPosition> follow_byte(GrammarMatcher& matcher, const GrammarPosition& at,
                                           unsigned char byte);
std::optional<GrammarPosition> follow_text(GrammarMatcher& matcher, GrammarPosition at,
                                           std::string_view text);

}  // namespace kvant
