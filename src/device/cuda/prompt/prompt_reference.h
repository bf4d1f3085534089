// Computes prefill attention in double precision for tests. Scores, weights and values are exact, or rounded
// by this library's scheme (INT8 throughout) or by SageAttention's (scores in INT8, weights and values in
// FP8).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvant::cuda {

using Matrix = std::vector<double>;  // [tokens][d]

// Says how scores, weights and values are rounded.
enum class Scheme { exact, integers, sage };

// Rounds a number to FP8 with 4 bits of exponent and 3 of mantissa.
inline double e4m3(double x) {
  if (x == 0) return 0;
  const int exponent = std::max(static_cast<int>(std::floor(std::log2(std::abs(x)))), -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::clamp(std::nearbyint(x / step) * step, -448.0, 448.0);
}

// Rounds a number to one of the multiples of largest / 127.
inline double to_byte(double x, double largest) {
  return largest > 0 ? std::nearbyint(x / largest * 127) * largest / 127 : 0;
}

// Rounds keys to INT8 with a scale for each 128 tokens, after the channels' means have been subtracted.
inline Matrix rounded_keys(const Matrix& keys, int d) {
  const int n = static_cast<int>(keys.size()) / d;
  Matrix out(keys.size());
  std::vector<double> mean(d, 0.0);
  for (int t = 0; t < n; ++t)
    for (int c = 0; c < d; ++c) mean[c] += keys[t * d + c] / n;
  for (int tile = 0; tile < n; tile += 128) {
    const int end = std::min(n, tile + 128);
    double largest = 0;
    for (int i = tile * d; i < end * d; ++i) largest = std::max(largest, std::abs(keys[i] - mean[i % d]));
    for (int i = tile * d; i < end * d; ++i) out[i] = to_byte(keys[i] - mean[i % d], largest) + mean[i % d];
  }
  return out;
}

// Rounds values after the channels' means have been subtracted. Values become INT8 with a scale per channel
// and tile. With `sage`, values become FP8 with a scale per channel, and no means are subtracted.
inline Matrix rounded_values(const Matrix& values, int d, bool sage) {
  const int n = static_cast<int>(values.size()) / d;
  Matrix out(values.size());
  std::vector<double> mean(d, 0.0), reach(d, 0.0);
  for (int t = 0; t < n; ++t)
    for (int c = 0; c < d; ++c) mean[c] += sage ? 0 : values[t * d + c] / n;
  for (int t = 0; t < n; ++t)
    for (int c = 0; c < d; ++c) reach[c] = std::max(reach[c], std::abs(values[t * d + c] - mean[c]));
  for (int tile = 0; tile < n; tile += 128) {
    const int end = std::min(n, tile + 128);
    double largest = 0;
    for (int i = tile * d; i < end * d; ++i)
      if (reach[i % d] > 0) largest = std::max(largest, std::abs(values[i] - mean[i % d]) / reach[i % d]);
    for (int i = tile * d; i < end * d; ++i) {
      const int c = i % d;
      out[i] = mean[c] + (sage ? (reach[c] > 0 ? e4m3(values[i] / reach[c] * 448) * reach[c] / 448 : 0)
                               : to_byte(values[i] - mean[c], largest * reach[c]));
    }
  }
  return out;
}

// Holds the attention of one row.
struct Attention {
  std::vector<double> out;  // [d]
  double lse;
  double top;  // largest score
};

// Describes which rows, [first, end), of a matrix are visible to a query.
struct Seen {
  int first, end;
};

// Describes the floor of SAS. Scores that lie this far below the largest score of their tile get weight 0.
struct WeightFloor {
  double below = -INFINITY;
  int tile_tokens = 128;
};

// Computes the attention of one row to ranges of rows. `keys` and `values` must have been rounded by the
// scheme. Unless softcap is 0, scores become softcap * tanh(score / softcap).
inline Attention attend(const double* query, const Matrix& keys, const Matrix& values, int d, double scale,
                        const std::vector<Seen>& seen, Scheme scheme, double softcap = 0,
                        const WeightFloor& floor = {}) {
  std::vector<double> q(query, query + d);
  if (scheme != Scheme::exact) {
    double largest = 0;
    for (double x : q) largest = std::max(largest, std::abs(x));
    for (double& x : q) x = to_byte(x, largest);
  }
  std::vector<double> scores(keys.size() / d);
  double most = -INFINITY;
  for (const Seen& rows : seen)
    for (int t = rows.first; t < rows.end; ++t) {
      double dot = 0;
      for (int c = 0; c < d; ++c) dot += q[c] * keys[t * d + c];
      scores[t] = softcap > 0 ? softcap * std::tanh(dot * scale / softcap) : dot * scale;
      most = std::max(most, scores[t]);
    }
  Attention result{std::vector<double>(d, 0.0), -INFINITY, most};
  double mass = 0;
  for (const Seen& rows : seen)
    for (int t = rows.first; t < rows.end;) {
      const int tile_tokens = scheme == Scheme::exact ? floor.tile_tokens : 128;
      const int end = std::min(rows.end, (t / tile_tokens + 1) * tile_tokens);
      const double tile_most = *std::max_element(scores.begin() + t, scores.begin() + end);
      for (; t < end; ++t) {
        double weight = scores[t] - tile_most < floor.below ? 0 : std::exp(scores[t] - most);
        if (scheme == Scheme::integers)
          weight = std::nearbyint(std::exp(scores[t] - tile_most) * 255) / 255 * std::exp(tile_most - most);
        mass += weight;
        if (scheme == Scheme::sage) weight = e4m3(weight * 448) / 448;
        for (int c = 0; c < d; ++c) result.out[c] += weight * values[t * d + c];
      }
    }
  if (mass > 0) {
    for (double& x : result.out) x /= mass;
    result.lse = most + std::log(mass);
  }
  return result;
}

}  // namespace kvant::cuda
