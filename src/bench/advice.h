// Advises which of several caches to use, from what was measured of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvant {

struct AdviceRow {
  std::string recipe;
  std::int64_t bytes = 0;  // the cache of all sequences
  bool fits = false;
  bool measured = false;  // whether the figures below are valid
  double kld = 0;         // mean divergence from the unquantized cache, nats
  double top1 = 0;        // share of predictions whose likeliest token stays the same
  double decode_tps = 0;  // tokens a second
  std::string note;       // why it was not measured
  // the condition that its figures depend on: "in the place of kvant-4bit, ..."; empty: none
  std::string caveat;
  std::string asked;  // the recipe that was asked for; it differs where the uncalibrated one is used
};

struct Advice {
  std::vector<AdviceRow> rows;  // the recommended row first, then by divergence; those that don't fit last
  bool recommends = false;      // whether the first row is a recommendation
  std::string why;              // one sentence
};

// Considers the rows that fit, were measured, and have a small divergence: at most 0.005 nats, or twice the
// smallest one. Among those that are nearly as fast as the fastest, it recommends the one with the smallest
// divergence.
Advice advise(std::vector<AdviceRow> rows);

}  // namespace kvant
