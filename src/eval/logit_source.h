// LogitSource: something that predicts the next token of a text with one KV-cache configuration.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "attention/plan_report.h"
#include "base/matrix_view.h"
#include "base/result.h"
#include "eval/cache_size.h"

namespace kvant {

class LogitSource {
 public:
  virtual ~LogitSource() = default;

  // The row's name in tables: "kvant-4bit", "llama.cpp:q4_0".
  virtual const std::string& name() const = 0;
  // Forgets everything: the next token is the first of a text.
  virtual Status begin() = 0;
  // Runs the next tokens; `logits` gets the predictions [logits.rows, n_vocab] that follow the last
  // logits.rows of them (0: none). is_prompt: the text that is given; otherwise the scored part, which is
  // cached as in decoding, token by token, whatever the recipe's prompt blocks are.
  virtual Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) = 0;
  // Remembers how far the text has come, until the next begin(); goes back there, as often as needed, so that
  // several continuations follow one text. rewind() requires a mark.
  virtual Status mark() = 0;
  virtual Status rewind() = 0;
  // What the cache takes at this length of the text: the mean over the positions of a page.
  virtual CacheBits bits() const = 0;
  // The model constants that it needs.
  virtual ConstantSize constants() const { return {}; }
  // The resolved plan.
  virtual PlanReport plan() const = 0;
};

}  // namespace kvant
