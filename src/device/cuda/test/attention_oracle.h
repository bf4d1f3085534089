// Computes the attention of a query in double precision, which is the expected result in tests of the decode
// kernels. AttentionOracle supports capped scores, sink logits, and TurboAttention's exponential (SAS).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kvant::cuda {

enum class Softmax { exact, sas };

// Tests multiply scores by at most this factor. With a larger factor, the rounding of queries would cause
// larger errors than the tests tolerate.
inline constexpr float kSharpest = 24;

// Computes TurboAttention's exponential for x <= 0, as in Algorithm 3 of the paper, except that only x < -6
// gives zero (docs/reference/methods-turboattention.md).
inline double sas_exponential(double x) {
  if (x < -6) return 0;
  const double whole = std::floor(-x);
  const double f = -x - whole;
  return std::exp(-whole) * (-0.1025 * f * f * f + 0.4626 * f * f - 0.9922 * f + 0.9996);
}

struct AttentionOracle {
  struct Token {
    const float* key;
    const float* value;
  };

  int d;
  double softmax_scale;
  float softcap;  // 0 means no cap
  bool has_sink_logits;
  Softmax softmax;
  // SAS subtracts a reference from each score. If rises_by_tiles is true, the reference of a score is the
  // largest score up to the end of the token's tile of 16 tokens. Otherwise the reference is the largest of
  // all scores.
  bool rises_by_tiles;

  // Returns the logit that is added to the softmax denominator of a query head. Some logits are far larger
  // than all scores.
  static float sink_logit(int head) {
    constexpr float kLogits[] = {0, 2, -INFINITY, 30, -40};
    return kLogits[head % 5];
  }

  // Returns the output of a query, [d], and sets its LSE. There must be at least one token.
  std::vector<double> attend(const float* q, const std::vector<Token>& tokens, int head,
                             double* log_sum_exp) const {
    std::vector<double> scores;
    for (const Token& token : tokens) {
      double score = 0;
      for (int i = 0; i < d; ++i) score += double{q[i]} * token.key[i];
      score *= softmax_scale;
      scores.push_back(softcap > 0 ? softcap * std::tanh(score / softcap) : score);
    }
    double max = *std::max_element(scores.begin(), scores.end());
    if (has_sink_logits) max = std::max(max, double{sink_logit(head)});
    double sum = has_sink_logits ? std::exp(sink_logit(head) - max) : 0;
    std::vector<double> out(d);
    const std::vector<double> so_far = largest_so_far(scores, max);
    for (std::size_t j = 0; j < tokens.size(); ++j) {
      const double weight = softmax == Softmax::sas
                                ? sas_exponential(scores[j] - so_far[j]) * std::exp(so_far[j] - max)
                                : std::exp(scores[j] - max);
      sum += weight;
      for (int i = 0; i < d; ++i) out[i] += weight * tokens[j].value[i];
    }
    for (double& x : out) x /= sum;
    *log_sum_exp = max + std::log(sum);
    return out;
  }

 private:
  // Returns the reference score of each token, from which SAS subtracts. The kernels' reference rises from
  // tile to tile in a cache without sealed pages. With sealed pages, the scores of the tests are so close
  // together that the largest of all may replace this reference.
  std::vector<double> largest_so_far(const std::vector<double>& scores, double max) const {
    constexpr std::size_t kTile = 16;
    std::vector<double> largest(scores.size(), max);
    if (!rises_by_tiles) return largest;
    double before = -INFINITY;
    for (std::size_t first = 0; first < scores.size(); first += kTile) {
      const std::size_t end = std::min(first + kTile, scores.size());
      before = std::max(before, *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(first),
                                                  scores.begin() + static_cast<std::ptrdiff_t>(end)));
      std::fill(largest.begin() + static_cast<std::ptrdiff_t>(first),
                largest.begin() + static_cast<std::ptrdiff_t>(end), before);
    }
    return largest;
  }
};

}  // namespace kvant::cuda
