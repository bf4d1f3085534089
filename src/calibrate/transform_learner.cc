#include "calibrate/transform_learner.h"

#include <algorithm>
#include <cmath>

#include "calibrate/principal_directions.h"

namespace kvant {
namespace {

std::vector<float> smoothing_factors(MatrixView<const float> values) {
  std::vector<float> factors(values.cols);
  for (int r = 0; r < values.rows; ++r)
    for (int c = 0; c < values.cols; ++c) factors[c] = std::max(factors[c], std::abs(values.row(r)[c]));
  for (float& factor : factors) factor = std::sqrt(factor);
  return factors;
}

std::vector<double> means(MatrixView<const float> values) {
  std::vector<double> sums(values.cols);
  for (int r = 0; r < values.rows; ++r)
    for (int c = 0; c < values.cols; ++c) sums[c] += values.row(r)[c];
  for (double& sum : sums) sum /= values.rows;
  return sums;
}

std::vector<float> channel_means(MatrixView<const float> values) {
  const std::vector<double> mean = means(values);
  return {mean.begin(), mean.end()};
}

std::vector<float> scale_factors(MatrixView<const float> values) {
  const std::vector<double> mean = means(values);
  std::vector<double> squares(values.cols);
  for (int r = 0; r < values.rows; ++r) {
    for (int c = 0; c < values.cols; ++c) {
      const double difference = values.row(r)[c] - mean[c];
      squares[c] += difference * difference;
    }
  }
  std::vector<float> factors(values.cols);
  for (int c = 0; c < values.cols; ++c)
    factors[c] = static_cast<float>(std::sqrt(std::sqrt(squares[c] / values.rows)));
  return factors;
}

constexpr TransformLearner kLearners[] = {
    {"smooth", smoothing_factors},
    {"scale", scale_factors},
    {"mean", channel_means},
    {"pca", principal_directions},
};

}  // namespace

const TransformLearner* find_transform_learner(const std::string& kind) {
  for (const TransformLearner& learner : kLearners)
    if (kind == learner.kind) return &learner;
  return nullptr;
}

}  // namespace kvant
