// Recommends one of several caches, from figures that were measured for each cache. The advice weighs the
// divergence from the unquantized cache against decode speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvant {

// Describes one cache that may be recommended.
struct AdviceRow {
  std::string recipe;
  std::int64_t bytes = 0;  // bytes of the cache of all sequences
  bool fits = false;
  // Says whether kld, top1 and decode_tps are valid.
  bool measured = false;
  double kld = 0;         // mean divergence from the unquantized cache, nats
  double top1 = 0;        // share of predictions whose likeliest token stays the same
  double decode_tps = 0;  // tokens per second
  // Says why the cache was not measured.
  std::string note;
  // The figures hold only under this condition, for example "in the place of kvant-4bit, ...". An empty
  // string means no condition.
  std::string caveat;
  // Names the requested recipe, which differs from `recipe` if the uncalibrated recipe is used.
  std::string asked;
};

struct Advice {
  // The recommended row comes first. Other rows follow by divergence, and rows that do not fit come last.
  std::vector<AdviceRow> rows;
  // Says whether the first row is a recommendation.
  bool recommends = false;
  // Gives the reason in one sentence.
  std::string why;
};

// Chooses among good rows, which fit, were measured, and have a small divergence. A divergence is small if it
// is at most 0.005 nats or at most twice the smallest divergence. A good row is fast if it has at least 0.9
// times the speed of the fastest good row. Among the fast good rows, advise() recommends the row with the
// smallest divergence.
Advice advise(std::vector<AdviceRow> rows);

}  // namespace kvant
