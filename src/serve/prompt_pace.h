// PromptPace: how many tokens of prompts a step reads beside running answers, which wait for the step.
#pragma once

namespace kvant {

class PromptPace {
 public:
  // tokens: of the first step. seconds > 0: that a step may take; tokens() then follows what steps have
  // taken, up to `most`. 0: it stays.
  PromptPace(int tokens, double seconds, int most);

  int tokens() const { return tokens_; }
  // Of a step beside answers: how many it has read, and how long it has taken.
  void add(int n_tokens, double seconds);

 private:
  int tokens_, most_;
  double seconds_;
};

}  // namespace kvant
