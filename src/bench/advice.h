// Which of several caches to use, in the light of what was measured of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvant {

struct AdviceRow {
  std::string recipe;
  std::int64_t bytes = 0;  // of all sequences
  bool fits = false;
  bool measured = false;  // whether the figures below are there
  double kld = 0;         // mean divergence from the unquantized cache, nats
  double top1 = 0;        // share of predictions whose likeliest token stays the same
  double decode_tps = 0;  // tokens a second
  std::string note;       // why it was not measured
  std::string caveat;     // under which its figures stand: "in the place of kvant-4bit, ..."; empty: none
  std::string asked;      // the recipe that was asked for, which differs where the uncalibrated one serves
};

struct Advice {
  std::vector<AdviceRow> rows;  // the recommended one first, then by divergence; those that don't fit last
  bool recommends = false;      // whether the first is
  std::string why;              // a sentence
};

// Recommends, of those that fit and were measured, the fastest whose divergence hardly counts (0.005 nats, or
// twice the least there is); the closest one of those that are nearly as fast.
Advice advise(std::vector<AdviceRow> rows);

}  // namespace kvant
