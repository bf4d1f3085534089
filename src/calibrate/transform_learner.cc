#include "calibrate/transform_learner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calibrate/principal_directions.h"

namespace kvant {
namespace {

std::vector<float> largest_magnitudes(const TransformSamples& samples) {
  const MatrixView<const float> values = samples.values;
  std::vector<float> largest(values.cols);
  for (int r = 0; r < values.rows; ++r)
    for (int c = 0; c < values.cols; ++c) largest[c] = std::max(largest[c], std::abs(values.row(r)[c]));
  return largest;
}

std::vector<float> smoothing_factors(const TransformSamples& samples) {
  std::vector<float> factors = largest_magnitudes(samples);
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

std::vector<float> channel_means(const TransformSamples& samples) {
  const std::vector<double> mean = means(samples.values);
  return {mean.begin(), mean.end()};
}

std::vector<float> scale_factors(const TransformSamples& samples) {
  const MatrixView<const float> values = samples.values;
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

std::vector<float> value_directions(const TransformSamples& samples) {
  return principal_directions(second_moments(samples.values), samples.values.cols);
}

// Returns the squared score k M k^T of each row k of `keys`, [n], where M are the moments.
std::vector<double> squared_scores(MatrixView<const float> keys, const std::vector<double>& moments) {
  const int d = keys.cols;
  std::vector<double> squares(keys.rows);
  for (int r = 0; r < keys.rows; ++r) {
    const float* k = keys.row(r);
    for (int i = 0; i < d; ++i) {
      double product = 0;
      for (int j = 0; j < d; ++j) product += moments[static_cast<std::size_t>(i) * d + j] * k[j];
      squares[r] += product * k[i];
    }
  }
  return squares;
}

std::vector<float> attended_directions(const TransformSamples& samples) {
  const int d = samples.values.cols;
  std::vector<double> of_queries = second_moments(samples.queries);
  if (samples.side == Side::key) return principal_directions(std::move(of_queries), d);
  return principal_directions(second_moments(samples.values, squared_scores(samples.keys, of_queries)), d);
}

constexpr TransformLearner kLearners[] = {
    {"smooth", smoothing_factors}, {"scale", scale_factors},  {"amax", largest_magnitudes},
    {"mean", channel_means},       {"pca", value_directions}, {"oscar", attended_directions, true},
};

}  // namespace

const TransformLearner* find_transform_learner(const std::string& kind) {
  for (const TransformLearner& learner : kLearners)
    if (kind == learner.kind) return &learner;
  return nullptr;
}

}  // namespace kvant
