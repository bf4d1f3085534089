// PromptPace decides how many prompt tokens a step reads while completions wait for the step. The size of a
// step follows measured times, because no formula predicts the times for all devices and depths.
#pragma once

namespace kvant {

class PromptPace {
 public:
  // `tokens` is the size of the first step. With seconds > 0, tokens() follows the measured times. A step
  // should then take at most `seconds`, and reads at most `most` tokens. With seconds = 0, tokens() stays
  // constant.
  PromptPace(int tokens, double seconds, int most);

  int tokens() const { return tokens_; }
  // Takes the measurement of a step for which completions waited: the number of prompt tokens and the time.
  void add(int n_tokens, double seconds);

 private:
  int tokens_, most_;
  double seconds_;
};

}  // namespace kvant
