// Counts how much of V was left unread (Sparse V), for each query of each KV head. Reports show the rate and
// bound the error by the mass.
#pragma once

#include <cstdint>

namespace kvant {

struct SkipCount {
  std::int64_t seen = 0;     // (query, token) pairs
  std::int64_t skipped = 0;  // pairs whose V was not read
  std::int64_t queries = 0;
  // mass is the softmax weight of the skipped tokens, averaged over the heads of a group and summed over
  // queries.
  double mass = 0;

  void add(const SkipCount& other) {
    seen += other.seen;
    skipped += other.skipped;
    queries += other.queries;
    mass += other.mass;
  }
};

}  // namespace kvant
