// TokenPenalties: how much less likely a token becomes by being there already.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>

namespace kvant {

struct PenaltyOptions {
  // Subtracted from the logit of every token of the completion: once, and once for each time it is there
  // (the OpenAI API's presence_penalty and frequency_penalty). 0: none.
  float presence = 0;
  float frequency = 0;
  // Divides positive logits and multiplies negative ones of the last tokens of prompt and completion (Keskar
  // et al. 2019, section 4.1, as llama.cpp has it). 1: none.
  float repeat = 1;
  int repeat_last_n = 64;  // of so many tokens; -1: of all

  bool any() const { return presence != 0 || frequency != 0 || repeats(); }
  bool repeats() const { return repeat != 1 && repeat_last_n != 0; }
};

class TokenPenalties {
 public:
  explicit TokenPenalties(const PenaltyOptions& options) : options_(options) {}

  // A completion of this prompt begins.
  void begin(std::span<const std::int32_t> prompt);
  // A token of the completion.
  void accept(std::int32_t token);
  // logits [n_vocab].
  void apply(std::span<float> logits) const;

 private:
  void remember(std::int32_t token);

  PenaltyOptions options_;
  std::unordered_map<std::int32_t, int> generated_;  // how often a token is in the completion
  std::unordered_map<std::int32_t, int> recent_;     // and among the last tokens
  std::deque<std::int32_t> last_;                    // oldest first; empty where all count
};

}  // namespace kvant
