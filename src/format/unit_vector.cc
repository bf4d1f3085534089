#include "format/unit_vector.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "base/check.h"

namespace kvant {
namespace {

// Coordinate is the distribution of a coordinate sin(t) of a unit vector in R^n, whose density in t is
// cos(t)^(n - 2). The class sums the density over a fine grid of t in [0, pi / 2]. The distribution is
// symmetric.
class Coordinate {
 public:
  explicit Coordinate(int n) {
    weight_.push_back(0);
    moment_.push_back(0);
    for (int i = 0; i < kCells; ++i) {
      const double t = (i + 0.5) * kCell;
      const double weight = std::pow(std::cos(t), n - 2);
      weight_.push_back(weight_.back() + weight);
      moment_.push_back(moment_.back() + weight * std::sin(t));
    }
  }

  // Returns the mean of the coordinate between low and high. Requires 0 <= low < high <= 1.
  double mean_between(double low, double high) const {
    const double weight = at(weight_, high) - at(weight_, low);
    return weight > 0 ? (at(moment_, high) - at(moment_, low)) / weight : (low + high) / 2;
  }
  // Returns an upper bound for the initial levels, which is four times the mean of the coordinate's
  // magnitude.
  double spread() const { return std::min(1.0, 4 * moment_.back() / weight_.back()); }

 private:
  static constexpr int kCells = 1 << 16;
  static constexpr double kCell = std::numbers::pi / 2 / kCells;

  // Interpolates a running sum linearly between cells.
  static double at(const std::vector<double>& sums, double x) {
    const double cell = std::asin(std::min(x, 1.0)) / kCell;
    const auto i = std::min(static_cast<std::size_t>(cell), sums.size() - 2);
    return sums[i] + (sums[i + 1] - sums[i]) * (cell - static_cast<double>(i));
  }

  std::vector<double> weight_, moment_;  // [kCells + 1]
};

}  // namespace

std::vector<float> random_rotation(int n, std::uint64_t seed) {
  KVANT_CHECK(n >= 1, "a rotation of no channels");
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> rows(static_cast<std::size_t>(n) * n);
  for (int r = 0; r < n; ++r) {
    double* row = rows.data() + std::size_t{1} * r * n;
    std::generate(row, row + n, [&] { return normal(random); });
    for (int round = 0; round < 2; ++round) {  // The second round removes the rounding errors of the first.
      for (int s = 0; s < r; ++s) {
        const double* other = rows.data() + std::size_t{1} * s * n;
        double along = 0;
        for (int i = 0; i < n; ++i) along += row[i] * other[i];
        for (int i = 0; i < n; ++i) row[i] -= along * other[i];
      }
    }
    double square = 0;
    for (int i = 0; i < n; ++i) square += row[i] * row[i];
    for (int i = 0; i < n; ++i) row[i] /= std::sqrt(square);
  }
  return {rows.begin(), rows.end()};
}

std::vector<double> unit_vector_levels(int n, int bits) {
  KVANT_CHECK(n >= 2 && bits >= 1 && bits <= 8, "levels for unit vectors of 2 channels or more, 1 to 8 bits");
  const Coordinate coordinate(n);
  const int half = 1 << (bits - 1);
  std::vector<double> positive(half);
  for (int i = 0; i < half; ++i) positive[i] = (i + 0.5) * coordinate.spread() / half;
  constexpr double kStill = 1e-10;
  constexpr int kMaxSteps = 20'000;
  double moved = 1;
  for (int step = 0; step < kMaxSteps && moved > kStill; ++step) {  // Lloyd 1982
    moved = 0;
    double low = 0;
    for (int i = 0; i < half; ++i) {
      const double high = i + 1 < half ? (positive[i] + positive[i + 1]) / 2 : 1;
      const double level = coordinate.mean_between(low, high);
      moved = std::max(moved, std::abs(level - positive[i]));
      positive[i] = level;
      low = high;
    }
  }
  std::vector<double> levels(positive.rbegin(), positive.rend());
  for (double& level : levels) level = -level;
  levels.insert(levels.end(), positive.begin(), positive.end());
  return levels;
}

}  // namespace kvant
