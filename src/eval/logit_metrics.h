// LogitMetrics: compares a recipe's predictions with the reference's, position by position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/result.h"

namespace kvant {

// Holds one scored position. p is the softmax of the reference's logits, p' that of the other's.
struct LogitComparison {
  double kld = 0;         // sum over tokens of p log(p / p'), nats
  double nll = 0;         // -log p'(true token), nats
  double delta_p = 0;     // p'(true token) - p(true token)
  bool same_top = false;  // both have the same most likely token
};

// Compares two rows of n_vocab logits. target: the actual next token, in [0, n_vocab). Exponentials are F32
// and sums F64; the error of kld is below 1e-7 for close logits. A token whose probability under the
// reference is below 1e-37 counts as impossible there (logits may be -inf).
LogitComparison compare_logits(const float* base, const float* other, int n_vocab, std::int32_t target);

// Holds the figures of a table, over all scored positions.
struct MetricsSummary {
  std::int64_t positions = 0;
  double ppl = 0;
  double kld_mean = 0, kld_lo = 0, kld_hi = 0;  // mean and its bootstrap 95 % interval
  double kld_median = 0, kld_p99 = 0, kld_p999 = 0, kld_max = 0;
  double top1 = 0;    // share of positions with the same most likely token, 0 .. 1
  double rms_dp = 0;  // root mean square of delta_p, 0 .. 1
};

// Holds scores by position, chunk after chunk.
struct PositionScores {
  std::vector<double> kld;
  std::vector<std::uint8_t> same_top;  // 1: both have the same most likely token
};

class LogitMetrics {
 public:
  // Starts a new chunk, which is an independent unit for the bootstrap.
  void begin_chunk() { chunk_starts_.push_back(positions_.kld.size()); }
  // Scores rows of logits [n, n_vocab] of the same positions; targets: [n]. n_threads share the rows. Returns
  // an error if a row gives no finite divergence (NaN logits).
  Status add(MatrixView<const float> base, MatrixView<const float> other,
             std::span<const std::int32_t> targets, int n_threads);
  MetricsSummary summary() const;
  const PositionScores& positions() const { return positions_; }
  // Returns the mean divergence of each unit of the bootstrap: a chunk, or a block of 64 positions if there
  // is one chunk.
  std::vector<double> block_means() const;

 private:
  PositionScores positions_;
  std::vector<std::size_t> chunk_starts_;
  double nll_sum_ = 0;
  double delta_p_squares_ = 0;
};

// Returns the q-quantile of sorted values, q in [0, 1], interpolated linearly between neighbours.
double quantile(std::span<const double> sorted, double q);

// Holds a 95 % percentile-bootstrap interval of the mean of `values` (Efron 1979), which is deterministic.
struct Interval {
  double lo = 0, hi = 0;
};
Interval bootstrap_mean(std::span<const double> values);

}  // namespace kvant
