// Grammar holds rules for a completion's text (llama.cpp's GBNF) and the completion's position in them. The
// work for one token is bounded (grammar_matcher.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/grammar_trigger.h"
#include "model/tokenizer.h"

struct llama_token_data_array;

namespace kvant {

class GrammarVocabulary;

struct GrammarRules {
  std::string gbnf;  // the rules, which start with `root`; if empty, any text is valid
  GrammarTriggerRules trigger;

  bool empty() const { return gbnf.empty(); }
  bool is_lazy() const { return !trigger.empty(); }
};

class Grammar {
 public:
  // Makes a grammar from its rules. `tokenizer` must outlive the grammar. Returns an error for unreadable
  // rules, for rules that need too much memory or time (grammar_bounds.h), and for a tokenizer without a
  // vocabulary.
  static Result<std::unique_ptr<Grammar>> make(const GrammarRules& rules, const Tokenizer& tokenizer);
  // Returns the data that all grammars of a model share. As long as somebody holds the pointer, the data need
  // not be made again, which takes some milliseconds. Returns null if the tokenizer has no vocabulary.
  static std::shared_ptr<const GrammarVocabulary> vocabulary(const Tokenizer& tokenizer);
  ~Grammar();
  std::unique_ptr<Grammar> clone() const;  // returns a copy at the same position

  // Returns whether the token may come next.
  bool allows(std::int32_t token) const;
  // Sets the logits of tokens that may not come next to -infinity.
  void mask(llama_token_data_array& candidates) const;
  // Advances the position by a token. If the token is not allowed, an error is returned and the grammar is
  // unusable.
  Status accept(std::int32_t token);
  // Returns whether the text has more readings than GrammarMatcher follows for one token. The grammar then
  // allows no token.
  bool is_exhausted() const;

 private:
  struct State;
  explicit Grammar(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvant
