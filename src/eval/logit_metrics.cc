#include "eval/logit_metrics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "base/simd_clones.h"
#include "base/team.h"

namespace kvant {
namespace {

// Separate partial sums and maxima let the compiler vectorize the loops.
constexpr int kLanes = 16;
constexpr int kBlock = 256;
// Below kSmallestExponent, the exponential is at most four times the smallest normal F32.
constexpr float kSmallestExponent = -86.0F;
constexpr int kBootstrapSamples = 10000;
// With one chunk, the bootstrap resamples blocks of kPositionsPerBlock positions.
constexpr int kPositionsPerBlock = 64;

// Returns exp(x) for x <= 0, and zero below kSmallestExponent. The result is 2^n e^r with |r| <= log(2) / 2
// and Taylor's polynomial of degree 7. The relative error is 2e-7, mostly from rounding. The code has no
// branch, so the compiler can vectorize it.
inline float exp_of_negative(float x) {
  // Adding 1.5 * 2^23 to a small number rounds it to an integer.
  constexpr float kRound = 12582912.0F;
  const float clamped = x > kSmallestExponent ? x : kSmallestExponent;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float poly = 1.0F / 5040.0F;
  for (const float c : {1.0F / 720.0F, 1.0F / 120.0F, 1.0F / 24.0F, 1.0F / 6.0F, 0.5F, 1.0F, 1.0F}) {
    poly = poly * r + c;
  }
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const float power = std::bit_cast<float>((exponent + 127) << 23);
  return x > kSmallestExponent ? poly * power : 0.0F;
}

KVANT_SIMD_CLONES float largest(const float* x, int n) {
  std::array<float, kLanes> lanes;
  lanes.fill(-INFINITY);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  float result = -INFINITY;
  for (const float lane : lanes) result = std::max(result, lane);
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

struct Sums {
  double base = 0;      // sum of exp(base - base_max)
  double other = 0;     // sum of exp(other - other_max)
  double weighted = 0;  // sum of exp(base - base_max) (base - other)
};

KVANT_SIMD_CLONES Sums exponential_sums(const float* base, float base_max, const float* other,
                                        float other_max, int n) {
  std::array<double, kLanes> base_lanes{}, other_lanes{}, weighted_lanes{};
  std::array<float, kBlock> base_exp, other_exp, weighted;
  for (int start = 0; start < n; start += kBlock) {
    const int count = std::min(kBlock, n - start);
    if (count < kBlock) {
      base_exp.fill(0), other_exp.fill(0), weighted.fill(0);
    }
    const float* b = base + start;
    const float* o = other + start;
    for (int i = 0; i < count; ++i) {
      base_exp[i] = exp_of_negative(b[i] - base_max);
      other_exp[i] = exp_of_negative(o[i] - other_max);
      const float product = base_exp[i] * (b[i] - o[i]);
      weighted[i] = base_exp[i] > 0 ? product : 0.0F;
    }
    for (int i = 0; i < kBlock; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        base_lanes[lane] += base_exp[i + lane];
        other_lanes[lane] += other_exp[i + lane];
        weighted_lanes[lane] += weighted[i + lane];
      }
    }
  }
  const auto total = [](const auto& lanes) { return std::accumulate(lanes.begin(), lanes.end(), 0.0); };
  return {total(base_lanes), total(other_lanes), total(weighted_lanes)};
}

}  // namespace

// Let lse and lse' be the logarithms of the sums of exp. KLD is then sum p ((base - lse) - (other - lse')) =
// sum p (base - other) - (lse - lse').
LogitComparison compare_logits(const float* base, const float* other, int n_vocab, std::int32_t target) {
  const float base_max = largest(base, n_vocab);
  const float other_max = largest(other, n_vocab);
  const Sums sums = exponential_sums(base, base_max, other, other_max, n_vocab);
  const double base_lse = base_max + std::log(sums.base);
  const double other_lse = other_max + std::log(sums.other);
  LogitComparison result;
  // Rounding can make the divergence of equal rows a tiny negative number.
  const double kld = sums.weighted / sums.base - (base_lse - other_lse);
  result.kld = kld < 0 && kld > -1e-6 ? 0.0 : kld;
  result.nll = other_lse - other[target];
  result.delta_p = std::exp(other[target] - other_lse) - std::exp(base[target] - base_lse);
  result.same_top = std::find(base, base + n_vocab, base_max) - base ==
                    std::find(other, other + n_vocab, other_max) - other;
  return result;
}

std::vector<LogitComparison> compare_rows(MatrixView<const float> base, MatrixView<const float> other,
                                          std::span<const std::int32_t> targets, int n_threads) {
  const int n = static_cast<int>(targets.size());
  KVANT_CHECK(base.rows == n && other.rows == n && base.cols == other.cols,
              "rows of logits must match targets");
  std::vector<LogitComparison> rows(n);
  run_team(std::clamp(n, 1, n_threads), [&](Team& team) {
    team.for_each(n,
                  [&](int i) { rows[i] = compare_logits(base.row(i), other.row(i), base.cols, targets[i]); });
  });
  return rows;
}

Status LogitMetrics::add(MatrixView<const float> base, MatrixView<const float> other,
                         std::span<const std::int32_t> targets, int n_threads) {
  return add(compare_rows(base, other, targets, n_threads));
}

Status LogitMetrics::add(std::span<const LogitComparison> rows) {
  if (chunk_starts_.empty()) begin_chunk();
  for (const LogitComparison& row : rows) {
    if (std::isnan(row.kld) || std::isnan(row.nll)) {
      return error("the logits of scored position {} are not numbers: the model file may be damaged",
                   positions_.kld.size());
    }
    positions_.kld.push_back(row.kld);
    positions_.same_top.push_back(row.same_top ? 1 : 0);
    nll_sum_ += row.nll;
    delta_p_squares_ += row.delta_p * row.delta_p;
  }
  return {};
}

std::vector<double> LogitMetrics::block_means() const {
  const std::vector<double>& kld = positions_.kld;
  std::vector<std::size_t> starts = chunk_starts_;
  if (starts.size() == 1) {
    starts.clear();
    for (std::size_t i = 0; i < kld.size(); i += kPositionsPerBlock) starts.push_back(i);
  }
  starts.push_back(kld.size());
  std::vector<double> means;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i] == starts[i + 1]) continue;
    const double sum = std::accumulate(kld.begin() + starts[i], kld.begin() + starts[i + 1], 0.0);
    means.push_back(sum / static_cast<double>(starts[i + 1] - starts[i]));
  }
  return means;
}

MetricsSummary LogitMetrics::summary() const {
  const std::vector<double>& kld = positions_.kld;
  MetricsSummary result;
  result.positions = static_cast<std::int64_t>(kld.size());
  if (kld.empty()) return result;
  const auto n = static_cast<double>(kld.size());
  std::vector<double> sorted = kld;
  std::sort(sorted.begin(), sorted.end());
  result.ppl = std::exp(nll_sum_ / n);
  result.kld_mean = std::accumulate(kld.begin(), kld.end(), 0.0) / n;
  const Interval interval = bootstrap_mean(block_means());
  result.kld_lo = interval.lo;
  result.kld_hi = interval.hi;
  result.kld_median = quantile(sorted, 0.5);
  result.kld_p99 = quantile(sorted, 0.99);
  result.kld_p999 = quantile(sorted, 0.999);
  result.kld_max = sorted.back();
  result.top1 = std::accumulate(positions_.same_top.begin(), positions_.same_top.end(), 0.0) / n;
  result.rms_dp = std::sqrt(delta_p_squares_ / n);
  return result;
}

double quantile(std::span<const double> sorted, double q) {
  KVANT_CHECK(!sorted.empty() && q >= 0 && q <= 1, "quantile of nothing, or outside [0, 1]");
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = position - static_cast<double>(below);
  return sorted[below] + fraction * (sorted[above] - sorted[below]);
}

Interval bootstrap_mean(std::span<const double> values) {
  if (values.empty()) return {};
  // With a fixed seed, equal evaluations print equal intervals.
  std::mt19937_64 random(20260101);
  std::uniform_int_distribution<std::size_t> pick(0, values.size() - 1);
  std::vector<double> means(kBootstrapSamples);
  for (double& mean : means) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[pick(random)];
    mean = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end());
  return {quantile(means, 0.025), quantile(means, 0.975)};
}

}  // namespace kvant
