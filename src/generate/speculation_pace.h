// SpeculationPace: how many drafted tokens a step verifies, from how long steps of so many rows take here.
//
// A step with r rows of which some are drafts gives one token for every sequence, and one for every draft
// that is right. It pays where it gives more tokens a second than the step without drafts.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "generate/draft_source.h"

namespace kvant {

class SpeculationPace {
 public:
  // How long a step of so many decoded tokens has taken, drafts included.
  void add(int n_rows, double seconds);

  // How many tokens of each sequence's draft are worth their rows, in a step that gives each sequence one
  // token anyway. most_rows: of the step. With several sequences, drafts may delay the others' tokens by
  // kMostDelay.
  std::vector<int> choose(std::span<const Draft> drafts, int most_rows) const;

  // Whether steps without drafts were measured: before that no draft is used.
  bool knows_plain_steps() const { return seconds(1) > 0; }

  // How many tokens of one sequence's draft are worth their time, at most `most`, where drafting a token
  // takes so many seconds and the token is right with these odds if all before it are.
  int worth_drafting(double odds, double seconds_each, int most) const;

  static constexpr double kMostDelay = 0.25;  // of the step's time without drafts

 private:
  struct Measured {
    int n = 0;
    double seconds = 0;  // the mean, of which old steps fade
    long newest = 0;     // the step, counted over all sizes
  };
  double seconds(int n_rows) const;  // 0: nothing is known

  std::map<int, Measured> measured_;  // by rows
  long n_steps_ = 0;
};

}  // namespace kvant
