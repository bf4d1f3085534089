// SpeculationPace decides how many drafted tokens a step verifies, from the measured times of steps by their
// number of rows.
//
// A step gives one token for every sequence and one more for every draft token that is right. Drafts pay if
// that gives more tokens per second than steps without drafts.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "generate/draft_source.h"

namespace kvant {

class SpeculationPace {
 public:
  // Records how long a step of n_rows rows took: one row per sequence, and one per draft token.
  void add(int n_rows, double seconds);

  // Returns how many tokens of each sequence's draft are worth verifying. The step has at most most_rows
  // rows, of which each sequence needs one anyway. With several sequences, the drafts of one may delay the
  // others' tokens by at most kMostDelay.
  //
  // The first step of a size takes longer, because a device builds a graph for the size. So drafts use a new
  // size only when they have missed a part of that time.
  std::vector<int> choose(std::span<const Draft> drafts, int most_rows);

  // Returns whether steps without drafts have been measured. Drafts are used only after that.
  bool knows_plain_steps() const { return seconds(1) > 0; }

  // Returns how many tokens of one sequence are worth drafting, at most `most`. Drafting a token takes
  // seconds_each. Each drafted token is right with these `odds` if all before it are right.
  int worth_drafting(double odds, double seconds_each, int most) const;

  static constexpr double kMostDelay = 0.25;  // share of the time of a step without drafts

 private:
  struct Measured {
    int n = 0;
    double first_seconds = 0;  // of the first step
    double seconds = 0;        // a moving average
    long newest = 0;           // the number of the newest step, counted over all sizes
  };
  double seconds(int n_rows) const;  // 0 if unknown
  bool is_known(const Measured& m) const;
  int most_tried(int n_sequences) const;  // the most rows that a step may have
  double start_seconds() const;           // by which the first step of a size exceeds later steps
  bool earns_start(double saved);

  std::map<int, Measured> measured_;  // by number of rows
  long n_steps_ = 0;
  double missed_ = 0;  // seconds that sizes that were never used would have saved
};

}  // namespace kvant
