// SpeculationPace: decides how many drafted tokens a step verifies, from measured times of steps by their
// number of rows.
//
// A step gives one token for every sequence, and one for every draft token that is right. Drafts pay if this
// gives more tokens per second than a step without drafts.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "generate/draft_source.h"

namespace kvant {

class SpeculationPace {
 public:
  // Records how long a step of n_rows decoded tokens took, drafts included.
  void add(int n_rows, double seconds);

  // Returns how many tokens of each sequence's draft are worth their rows, in a step that gives each sequence
  // one token anyway. most_rows: the limit of the step. With several sequences, drafts may delay the others'
  // tokens by at most kMostDelay.
  std::vector<int> choose(std::span<const Draft> drafts, int most_rows) const;

  // Whether steps without drafts have been measured. Before that no draft is used.
  bool knows_plain_steps() const { return seconds(1) > 0; }

  // Returns how many draft tokens of one sequence are worth their time, at most `most`. Drafting a token
  // takes seconds_each, and it is right with these odds if all before it are.
  int worth_drafting(double odds, double seconds_each, int most) const;

  static constexpr double kMostDelay = 0.25;  // share of the time of a step without drafts

 private:
  struct Measured {
    int n = 0;
    double seconds = 0;  // moving average
    long newest = 0;     // number of the newest step, counted over all sizes
  };
  double seconds(int n_rows) const;  // 0: unknown
  bool is_known(const Measured& m) const;
  int most_tried(int n_sequences) const;  // rows of a step

  std::map<int, Measured> measured_;  // by rows
  long n_steps_ = 0;
};

}  // namespace kvant
