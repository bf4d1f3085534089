// Grammar: what the text of an answer may be, and how far an answer has come in it (llama.cpp's GBNF).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

struct llama_sampler;
struct llama_token_data_array;

namespace kvant {

struct GrammarRules {
  std::string gbnf;  // rules; the text is a `root`. Empty: any text
  // Where it holds only from a certain text on: what comes before is free. Empty: from the start.
  std::vector<std::string> trigger_patterns;  // regular expressions: from the first group's match on
  std::vector<std::int32_t> trigger_tokens;

  bool empty() const { return gbnf.empty(); }
  bool is_lazy() const { return !trigger_patterns.empty() || !trigger_tokens.empty(); }
};

class Grammar {
 public:
  // tokenizer outlives it. Errors: rules that can't be read, or would take too much memory or time (see
  // grammar_bounds.h), or a tokenizer without a vocabulary.
  static Result<std::unique_ptr<Grammar>> make(const GrammarRules& rules, const Tokenizer& tokenizer);
  ~Grammar();
  std::unique_ptr<Grammar> clone() const;  // as far as this one has come

  // Whether the token may come next.
  bool allows(std::int32_t token) const;
  // Gives those that may not come next the logit -infinity.
  void mask(llama_token_data_array& candidates) const;
  // The token has come. An error: it may not, and the grammar is of no use any more.
  Status accept(std::int32_t token);

 private:
  explicit Grammar(llama_sampler* rules) : rules_(rules) {}
  llama_sampler* rules_;
};

}  // namespace kvant
