// Predicts the next token of a text with one KV-cache configuration. Evaluations use kvant's engine and
// llama.cpp only through this interface.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "attention/plan_report.h"
#include "base/check.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "eval/cache_size.h"

namespace kvant {

class LogitSource {
 public:
  virtual ~LogitSource() = default;

  // Returns the row's name in tables, such as "kvant-4bit" or "llama.cpp:q4_0".
  virtual const std::string& name() const = 0;
  // Forgets all tokens. The next token is then the first token of a text.
  virtual Status begin() = 0;
  // Runs the next tokens. `logits` receives the predictions [logits.rows, n_vocab] after the last logits.rows
  // tokens; 0 rows are allowed. `is_prompt` marks text that is given. Other tokens are cached in single
  // steps, as in decode, whatever the recipe's prompt blocks are.
  virtual Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) = 0;
  // Forgets all tokens, and begins n_texts texts that run side by side. Only kvant's engine runs several.
  virtual Status begin_texts(int n_texts) {
    KVANT_CHECK(n_texts == 1, "a source of one text");
    return begin();
  }
  // Runs the next tokens of every text as step() does. Row i of `logits` receives the prediction after the
  // tokens of text i. If the tokens are no prompt, each text has one token.
  virtual Status step_texts(std::span<const std::span<const std::int32_t>> texts, bool is_prompt,
                            MatrixView<float> logits) {
    KVANT_CHECK(texts.size() == 1, "a source of one text");
    return step(texts.front(), is_prompt, logits);
  }
  // mark() remembers the current position until the next begin(), and rewind() returns to the mark. Repeated
  // rewinds let several continuations follow one text. rewind() requires a mark.
  virtual Status mark() = 0;
  virtual Status rewind() = 0;
  // Returns the bits of the cache at the current length, as mean_bits() defines them.
  virtual CacheBits bits() const = 0;
  // Returns the size of the model constants that the cache needs.
  virtual ConstantSize constants() const { return {}; }
  // Returns the resolved plan.
  virtual PlanReport plan() const = 0;
};

}  // namespace kvant
