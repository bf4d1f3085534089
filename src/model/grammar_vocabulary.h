// GrammarVocabulary finds the tokens that a grammar allows next. The texts of all tokens form a tree of
// bytes, so a common prefix is followed only once.
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

// GrammarPosition is a position in a text, possibly within a character.
struct GrammarPosition {
  GrammarStates states = kNoStates;
  std::uint32_t character = 0;  // the bits of the character that have come so far
  int bytes_left = 0;           // the number of the character's bytes that are still missing
  std::uint32_t least = 0;      // a shorter form exists for characters below this one
};

class GrammarVocabulary {
 public:
  // Returns the data for a vocabulary, which must outlive the data. All grammars of a model share one object,
  // because making the object takes some milliseconds.
  static std::shared_ptr<const GrammarVocabulary> of(const llama_vocab* vocabulary);
  explicit GrammarVocabulary(const llama_vocab* vocabulary);

  std::size_t size() const { return texts_.size(); }
  // Returns the text of a token for grammars. An empty string means that no grammar can contain the token.
  const std::string& text(std::int32_t token) const { return texts_[token]; }
  bool ends(std::int32_t token) const { return ends_[token]; }
  // Sets the entries of `allowed` [n_tokens] for the tokens that may come next.
  void allow(GrammarMatcher& matcher, const GrammarPosition& at, std::vector<bool>& allowed) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;
    std::vector<std::int32_t> tokens;  // the tokens whose text ends here
  };
  void walk(GrammarMatcher& matcher, const GrammarPosition& at, int node, std::vector<bool>& allowed) const;

  std::vector<std::string> texts_;
  std::vector<bool> ends_;
  std::vector<Node> tree_;
};

// follow_byte() and follow_text() return the position after one more byte, or after a text. The functions
// return nothing if the grammar does not allow the byte or text.
std::optional<GrammarPosition> follow_byte(GrammarMatcher& matcher, const GrammarPosition& at,
                                           unsigned char byte);
std::optional<GrammarPosition> follow_text(GrammarMatcher& matcher, GrammarPosition at,
                                           std::string_view text);

}  // namespace kvant
