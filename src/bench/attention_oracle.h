// Computes the attention of one query in double precision from its definition, as the expected result of
// tests. The inputs must be the values that the cache stores. Only the arithmetic of attention then differs.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvant::testing {

using Rows = std::vector<std::vector<double>>;  // [n][head_dim]

// Returns softmax(q.K / sqrt(d)) V, [head_dim].
inline std::vector<double> attention_in_double(const std::vector<double>& q, const Rows& k, const Rows& v) {
  const std::size_t d = q.size();
  std::vector<double> weights;
  for (const auto& key : k) {
    double score = 0;
    for (std::size_t c = 0; c < d; ++c) score += q[c] * key[c];
    weights.push_back(score / std::sqrt(static_cast<double>(d)));
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - top);
  std::vector<double> output(d);
  for (std::size_t t = 0; t < k.size(); ++t) {
    for (std::size_t c = 0; c < d; ++c) output[c] += weights[t] / sum * v[t][c];
  }
  return output;
}

// Returns the root mean square of a - b, relative to the root mean square of b.
template <class Values>
double relative_rms_error(const Values& a, const std::vector<double>& b) {
  double error = 0, power = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    power += b[i] * b[i];
  }
  return std::sqrt(error / power);
}

}  // namespace kvant::testing
