// Benchmarks only: weights that one observer gives the tokens of a sequence that is filled with noise.
#pragma once

#include <cmath>
#include <vector>

namespace kvant {

// [n_tokens]: multiples of the golden ratio without their integer part, of which every page has as large a
// share above any threshold as the others.
inline std::vector<double> synthetic_weights(int n_tokens) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<double> weights(n_tokens);
  for (int t = 0; t < n_tokens; ++t) weights[t] = kGolden * t - std::floor(kGolden * t);
  return weights;
}

}  // namespace kvant
