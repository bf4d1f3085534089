// PromptPace decides how many prompt tokens a step reads while other completions wait for the step.
#pragma once

namespace kvant {

class PromptPace {
 public:
  // `tokens` is the size of the first step. With seconds > 0, tokens() follows the measured times, so a step
  // takes at most that long, up to `most` tokens. With 0 it stays constant.
  PromptPace(int tokens, double seconds, int most);

  int tokens() const { return tokens_; }
  // Takes the measurement of a step with waiting completions: the tokens that it read, and its time.
  void add(int n_tokens, double seconds);

 private:
  int tokens_, most_;
  double seconds_;
};

}  // namespace kvant
