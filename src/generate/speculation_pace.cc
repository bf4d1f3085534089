#include "generate/speculation_pace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvant {
namespace {

// Before larger steps have been measured, each additional row is assumed to take this share of a step's time.
// The share is small, so larger steps are tried.
constexpr double kAssumedRow = 0.05;
// A step has at most kGrowth times as many rows as the largest step that was measured, but may always have
// verify kFirstDrafts drafted tokens. If rows are slow, a few rows are enough to measure this.
constexpr int kGrowth = 2, kFirstDrafts = 3;
// A step size that has not been used for this many steps is measured again. Meanwhile the text may have
// grown, or other programs may run.
constexpr long kForgotten = 1024;
constexpr double kNewest = 0.2;  // the newest step has this weight in the average
// The time of a step size counts from this step on. On a device the first step builds the size's graph, and
// the second step records the graph for replay, so both are ignored.
constexpr int kFirstSteps = 3;
// Drafts must promise at least this factor more speed, because times and chances are estimates.
constexpr double kMargin = 1.05;
// The first step of a new size takes longer. Drafts use the size once they have missed this share of the
// additional time.
constexpr double kMissed = 0.25;
constexpr double kLongestStart = 32;

// Returns the next larger step size that is used. Only few sizes are used, so each is soon measured and its
// graph is kept.
int next_size(int n_rows) {
  return n_rows < 4 ? n_rows + 1 : n_rows < 8 ? (n_rows / 2 + 1) * 2 : (n_rows / 4 + 1) * 4;
}

}  // namespace

void SpeculationPace::add(int n_rows, double seconds) {
  ++n_steps_;
  Measured& m = measured_[n_rows];
  if (n_steps_ - m.newest > kForgotten) m.n = 0;
  m.newest = n_steps_;
  if (m.n == 0 && m.first_seconds == 0) m.first_seconds = seconds;
  if (++m.n <= kFirstSteps) {
    m.seconds = seconds;
  } else {
    m.seconds += kNewest * (seconds - m.seconds);
  }
}

bool SpeculationPace::is_known(const Measured& m) const {
  return m.n >= kFirstSteps && n_steps_ - m.newest <= kForgotten;
}

int SpeculationPace::most_tried(int n_sequences) const {
  int largest = 0;
  for (const auto& [rows, m] : measured_) {
    if (is_known(m)) largest = rows;
  }
  return std::max(kGrowth * largest, n_sequences + kFirstDrafts);
}

// Returns the time of a step of n_rows rows. The time is interpolated linearly between measured sizes and
// extrapolated beyond them.
double SpeculationPace::seconds(int n_rows) const {
  int low = 0, below_low = 0;
  double of_low = 0, of_below_low = 0;
  for (const auto& [rows, m] : measured_) {
    if (!is_known(m)) continue;
    if (rows == n_rows) return m.seconds;
    if (rows > n_rows) {
      if (low == 0) return m.seconds;
      return of_low + (m.seconds - of_low) * (n_rows - low) / (rows - low);
    }
    below_low = std::exchange(low, rows);
    of_below_low = std::exchange(of_low, m.seconds);
  }
  const double of_row =
      below_low == 0 ? kAssumedRow * of_low : std::max(0.0, (of_low - of_below_low) / (low - below_low));
  return of_low + of_row * (n_rows - low);
}

// Other work may have delayed the first step of a size. The function therefore returns the least of all known
// values, and at most the time of kLongestStart later steps.
double SpeculationPace::start_seconds() const {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [rows, m] : measured_) {
    if (m.n >= kFirstSteps) least = std::min({least, m.first_seconds - m.seconds, kLongestStart * m.seconds});
  }
  return std::isfinite(least) ? least : 0;
}

// Adds the time that a new size would save now. Returns whether the size may start.
bool SpeculationPace::earns_start(double saved) {
  missed_ += saved;
  if (missed_ < kMissed * start_seconds()) return false;
  missed_ = 0;
  return true;
}

std::vector<int> SpeculationPace::choose(std::span<const Draft> drafts, int most_rows) {
  const int n_sequences = static_cast<int>(drafts.size());
  std::vector<int> chosen(drafts.size(), 0);
  // Candidate is a drafted token with the chance that it and all drafted tokens before it are right. The
  // chance falls within a draft.
  struct Candidate {
    double odds;
    int sequence;
  };
  std::vector<Candidate> candidates;
  for (int s = 0; s < n_sequences; ++s) {
    double odds = 1;
    for (const double of_token : drafts[s].odds) candidates.push_back({odds *= of_token, s});
  }
  const double plain = seconds(n_sequences);
  if (candidates.empty() || plain == 0) return chosen;
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.odds > b.odds; });
  const double longest = n_sequences > 1 ? (1 + kMostDelay) * plain : plain * most_rows;
  struct Choice {
    int n = 0;  // number of drafted tokens
    double tokens, taken, rate;
  };
  Choice best{0, static_cast<double>(n_sequences), plain, kMargin * n_sequences / plain}, started = best;
  double tokens = n_sequences;
  int size = next_size(n_sequences);
  most_rows = std::min(most_rows, most_tried(n_sequences));
  const int most = std::min<int>(most_rows - n_sequences, static_cast<int>(candidates.size()));
  for (int n = 1; n <= most; ++n) {
    tokens += candidates[n - 1].odds;
    const int rows = n_sequences + n;
    if (rows < size && n < most) continue;
    size = next_size(rows);
    const double taken = seconds(rows);
    if (taken > longest) continue;
    const Choice choice{n, tokens, taken, tokens / taken};
    if (choice.rate > best.rate) best = choice;
    if (choice.rate > started.rate && measured_.contains(rows)) started = choice;
  }
  if (best.n != started.n && !earns_start(best.tokens / started.rate - best.taken)) best = started;
  for (const Candidate& candidate : std::span(candidates).first(best.n)) ++chosen[candidate.sequence];
  return chosen;
}

int SpeculationPace::worth_drafting(double odds, double seconds_each, int most) const {
  const double plain = seconds(1);
  if (plain == 0) return 0;
  double best_rate = kMargin / plain, tokens = 1, all_right = 1;
  int best = 0;
  most = std::min(most, most_tried(1) - 1);
  for (int n = 1; n <= most; ++n) {
    tokens += all_right *= odds;
    const double rate = tokens / (seconds(1 + n) + n * seconds_each);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = n;
  }
  return best;
}

}  // namespace kvant
