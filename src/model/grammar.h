// Grammar holds the rules for a completion's text, and the completion's position in them (llama.cpp's GBNF).
// The cost of a token is bounded (grammar_matcher.h).
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
  std::string gbnf;  // rules; the text is a `root`. Empty: any text is valid
  GrammarTriggerRules trigger;

  bool empty() const { return gbnf.empty(); }
  bool is_lazy() const { return !trigger.empty(); }
};

class Grammar {
 public:
  // `tokenizer` must outlive it. Errors: unreadable rules, rules that need too much memory or time
  // (grammar_bounds.h), or a tokenizer without a vocabulary.
  static Result<std::unique_ptr<Grammar>> make(const GrammarRules& rules, const Tokenizer& tokenizer);
  // Returns what all grammars of a model share. If nobody holds it, it is made anew in some milliseconds.
  // Null: the tokenizer has no vocabulary.
  static std::shared_ptr<const GrammarVocabulary> vocabulary(const Tokenizer& tokenizer);
  ~Grammar();
  std::unique_ptr<Grammar> clone() const;  // a copy at the same position

  // Returns whether the token may come next.
  bool allows(std::int32_t token) const;
  // Sets the logits of tokens that may not come next to -infinity.
  void mask(llama_token_data_array& candidates) const;
  // Advances by the token. After an error, because it was not allowed, the grammar is unusable.
  Status accept(std::int32_t token);
  // Returns whether the text can be read in more ways than are followed for one token (GrammarMatcher).
  // Nothing is allowed then.
  bool is_exhausted() const;

 private:
  struct State;
  explicit Grammar(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvant
