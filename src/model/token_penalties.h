// TokenPenalties lowers the logits of tokens that the text already contains. The OpenAI API and llama-server
// define penalties in different ways, and kvant supports both.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

namespace kvant {

struct PenaltyOptions {
  // `presence` and `frequency` are subtracted from the logit of every token in the completion. `presence`
  // counts once and `frequency` counts per occurrence (presence_penalty and frequency_penalty of the OpenAI
  // API). 0 means no penalty.
  float presence = 0;
  float frequency = 0;
  // The logits of the last tokens of prompt and completion are divided by this number if positive, and
  // multiplied by it if negative. 1 means no penalty. Keskar et al. 2019, section 4.1, describe the method,
  // which llama.cpp uses, too.
  float repeat = 1;
  int repeat_last_n = 64;  // this many last tokens count; -1 means all tokens

  bool any() const { return presence != 0 || frequency != 0 || repeats(); }
  bool repeats() const { return repeat != 1 && repeat_last_n != 0; }
};

class TokenPenalties {
 public:
  explicit TokenPenalties(const PenaltyOptions& options) : options_(options) {}

  // Starts a completion of this prompt.
  void begin(std::span<const std::int32_t> prompt);
  // Takes a token of the completion.
  void accept(std::int32_t token);
  // Applies the penalties to logits [n_vocab].
  void apply(std::span<float> logits) const;

 private:
  void remember(std::int32_t token);

  PenaltyOptions options_;
  std::unordered_map<std::int32_t, int> generated_;  // [token], occurrences in the completion
  std::unordered_map<std::int32_t, int> recent_;     // [token], occurrences among the last tokens
  std::deque<std::int32_t> last_;                    // the oldest first; empty if all tokens count
};

}  // namespace kvant
