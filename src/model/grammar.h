// Grammar: what the text of an answer may be, and how far an answer has come in it (llama.cpp's GBNF). What a
// token costs is bounded (grammar_matcher.h).
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
  std::string gbnf;  // rules; the text is a `root`. Empty: any text
  GrammarTriggerRules trigger;

  bool empty() const { return gbnf.empty(); }
  bool is_lazy() const { return !trigger.empty(); }
};

class Grammar {
 public:
  // tokenizer outlives it. Errors: rules that can't be read, or would take too much memory or time (see
  // grammar_bounds.h), or a tokenizer without a vocabulary.
  static Result<std::unique_ptr<Grammar>> make(const GrammarRules& rules, const Tokenizer& tokenizer);
  // What all grammars of a model share: made anew for one, in some milliseconds, where nobody holds it. Null:
  // the tokenizer has no vocabulary.
  static std::shared_ptr<const GrammarVocabulary> vocabulary(const Tokenizer& tokenizer);
  ~Grammar();
  std::unique_ptr<Grammar> clone() const;  // as far as this one has come

  // Whether the token may come next.
  bool allows(std::int32_t token) const;
  // Gives those that may not come next the logit -infinity.
  void mask(llama_token_data_array& candidates) const;
  // The token has come. An error: it may not, and the grammar is of no use any more.
  Status accept(std::int32_t token);
  // What comes next can be read in more ways than are followed for one token (GrammarMatcher): then nothing
  // is allowed any more.
  bool is_exhausted() const;

 private:
  struct State;
  explicit Grammar(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvant
