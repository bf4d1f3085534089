// SpeculationPace decides how many drafted tokens a step verifies, from the measured times of steps by their
// number of rows.
//
// A step gives one token for every sequence and one more for every drafted token that is right. Drafts pay if
// such steps give more tokens per second than steps without drafts.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "generate/draft_source.h"

namespace kvant {

class SpeculationPace {
 public:
  // Records how long a step of n_rows rows took. A step has one row for each sequence and one for each
  // drafted token.
  void add(int n_rows, double seconds);

  // Returns how many tokens of each sequence's draft are worth verifying. The step has at most most_rows
  // rows, and each sequence needs one of them without drafts. If there are several sequences, the drafts of
  // one sequence may delay the tokens of the other sequences by at most kMostDelay.
  //
  // The first step of a size takes longer, because a device builds a graph for the size. Drafts therefore use
  // a new size only when they have missed a part of that time.
  std::vector<int> choose(std::span<const Draft> drafts, int most_rows);

  // Returns whether steps without drafts have been measured. Drafts are used only after such steps.
  bool knows_plain_steps() const { return seconds(1) > 0; }

  // Returns how many tokens of one sequence are worth drafting, at most `most`. Drafting a token takes
  // seconds_each. `odds` is the chance that a drafted token is right if all drafted tokens before it are
  // right.
  int worth_drafting(double odds, double seconds_each, int most) const;

  static constexpr double kMostDelay = 0.25;  // share of the time of a step without drafts

 private:
  struct Measured {
    int n = 0;
    double first_seconds = 0;  // time of the first step
    double seconds = 0;        // moving average of the time of later steps
    long newest = 0;           // number of the newest step of this size, counted over all sizes
  };
  double seconds(int n_rows) const;  // time of a step of n_rows rows; 0 if unknown
  bool is_known(const Measured& m) const;
  int most_tried(int n_sequences) const;  // the largest number of rows in a step
  double start_seconds() const;           // how much longer the first step of a size takes
  bool earns_start(double saved);

  std::map<int, Measured> measured_;  // measured times by number of rows
  long n_steps_ = 0;
  double missed_ = 0;  // seconds that sizes that were never used would have saved
};

}  // namespace kvant
