// Compares a recipe's predictions with the reference's, position by position: KL divergence, perplexity and
// agreement of the most likely token. Intervals come from a bootstrap over chunks of text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/matrix_view.h"
#include "base/result.h"

namespace kvant {

// Holds the scores of one position. p is the softmax of the reference's logits, and p' is the softmax of the
// recipe's logits.
struct LogitComparison {
  double kld = 0;      // sum over tokens of p log(p / p'), nats
  double nll = 0;      // -log p'(true token), nats
  double delta_p = 0;  // p'(true token) - p(true token)
  // The flag is true if the reference and the cache have the same most likely token.
  bool same_top = false;
};

// Compares two rows of n_vocab logits. `target` is the actual next token, in [0, n_vocab). Exponentials are
// computed in F32 and summed in F64, and the error of kld is below 1e-7 for close logits. Logits may be -inf.
// A token with a probability below 1e-37 counts as impossible.
LogitComparison compare_logits(const float* base, const float* other, int n_vocab, std::int32_t target);
// Compares the logits [n, n_vocab] of n positions with the reference's. `targets` are the next tokens [n].
// n_threads threads share the rows.
std::vector<LogitComparison> compare_rows(MatrixView<const float> base, MatrixView<const float> other,
                                          std::span<const std::int32_t> targets, int n_threads);

// Holds the figures of a table row over all scored positions.
struct MetricsSummary {
  std::int64_t positions = 0;
  double ppl = 0;
  // kld_mean is the mean divergence. kld_lo and kld_hi bound its 95 % interval by bootstrap.
  double kld_mean = 0, kld_lo = 0, kld_hi = 0;
  double kld_median = 0, kld_p99 = 0, kld_p999 = 0, kld_max = 0;
  // top1 is the share of positions with same_top, 0 .. 1.
  double top1 = 0;
  // rms_dp is the root mean square of delta_p, 0 .. 1.
  double rms_dp = 0;
};

// Holds one score per position, in the order of chunks.
struct PositionScores {
  std::vector<double> kld;
  // The value is 1 if the reference and the cache have the same most likely token, otherwise 0.
  std::vector<std::uint8_t> same_top;
};

class LogitMetrics {
 public:
  // Starts a new chunk, which is an independent unit for the bootstrap.
  void begin_chunk() { chunk_starts_.push_back(positions_.kld.size()); }
  // Adds the scores of the next positions. Returns an error if a score is NaN, as the logits then were.
  Status add(std::span<const LogitComparison> rows);
  // Compares the logits of the next positions as compare_rows() does, and adds their scores.
  Status add(MatrixView<const float> base, MatrixView<const float> other,
             std::span<const std::int32_t> targets, int n_threads);
  MetricsSummary summary() const;
  const PositionScores& positions() const { return positions_; }
  // Returns the mean divergence of each unit of the bootstrap. A unit is a chunk, or a block of 64 positions
  // if there is only one chunk.
  std::vector<double> block_means() const;

 private:
  PositionScores positions_;
  std::vector<std::size_t> chunk_starts_;
  double nll_sum_ = 0;
  double delta_p_squares_ = 0;
};

// Returns the q-quantile of sorted values, q in [0, 1], interpolated linearly between neighbours.
double quantile(std::span<const double> sorted, double q);

// Holds a 95 % interval.
struct Interval {
  double lo = 0, hi = 0;
};
// Returns the percentile-bootstrap interval of the mean of `values` (Efron 1979). Equal values give equal
// intervals.
Interval bootstrap_mean(std::span<const double> values);

}  // namespace kvant
