#include "calibrate/principal_directions.h"

#include <cstddef>
#include <utility>

#include "calibrate/symmetric_eigen.h"

namespace kvant {

std::vector<double> second_moments(MatrixView<const float> x, std::span<const double> weights) {
  const auto d = static_cast<std::size_t>(x.cols);
  std::vector<double> moments(d * d);
  for (int r = 0; r < x.rows; ++r) {
    const float* row = x.row(r);
    const double weight = weights.empty() ? 1 : weights[r];
    for (std::size_t i = 0; i < d; ++i) {
      const double weighted = weight * row[i];
      for (std::size_t j = i; j < d; ++j) moments[i * d + j] += weighted * row[j];
    }
  }
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t j = 0; j < i; ++j) moments[i * d + j] = moments[j * d + i];
  return moments;
}

std::vector<float> principal_directions(std::vector<double> moments, int d) {
  const SymmetricEigen found = symmetric_eigen(std::move(moments), d);
  return {found.vectors.begin(), found.vectors.end()};
}

}  // namespace kvant
