#include "calibrate/transform_learner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "calibrate/principal_directions.h"
#include "calibrate/symmetric_eigen.h"

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

// Returns the product of two symmetric matrices [d, d].
std::vector<double> symmetric_product(const std::vector<double>& a, const std::vector<double>& b, int d) {
  std::vector<double> product(a.size());
  for (int i = 0; i < d; ++i) {
    for (int k = 0; k < d; ++k) {
      const double factor = a[static_cast<std::size_t>(i) * d + k];
      for (int j = 0; j < d; ++j)
        product[static_cast<std::size_t>(i) * d + j] += factor * b[static_cast<std::size_t>(k) * d + j];
    }
  }
  return product;
}

// Returns the symmetric square root of `moments` [d, d], divided by the root of their mean eigenvalue.
// Eigenvalues are at least kLeastShare of the largest, so the root has an inverse even if the queries span
// few directions.
std::vector<double> square_root(const std::vector<double>& moments, int d) {
  constexpr double kLeastShare = 1e-6;
  const SymmetricEigen found = symmetric_eigen(moments, d);
  double mean = 0;
  for (const double value : found.values) mean += value / d;
  std::vector<double> root(moments.size());
  for (int r = 0; r < d; ++r) {
    const double value = std::max(found.values[r], kLeastShare * found.values[0]);
    const double factor = mean > 0 ? std::sqrt(value / mean) : 1;
    const double* vector = &found.vectors[static_cast<std::size_t>(r) * d];
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j) root[static_cast<std::size_t>(i) * d + j] += factor * vector[i] * vector[j];
  }
  return root;
}

std::vector<double> covariance(MatrixView<const float> values) {
  const std::vector<double> mean = means(values);
  std::vector<double> moments = second_moments(values);
  for (int i = 0; i < values.cols; ++i)
    for (int j = 0; j < values.cols; ++j) {
      double& moment = moments[static_cast<std::size_t>(i) * values.cols + j];
      moment = moment / values.rows - mean[i] * mean[j];
    }
  return moments;
}

std::vector<float> nova_map(const TransformSamples& samples) {
  constexpr int kGroup = 4;  // channels
  const int d = samples.values.cols, groups = std::max(1, d / kGroup);
  std::vector<double> weights(static_cast<std::size_t>(d) * d);
  if (samples.side == Side::key) {
    weights = second_moments(samples.queries);
  } else {
    for (int i = 0; i < d; ++i) weights[static_cast<std::size_t>(i) * d + i] = 1;
  }
  const std::vector<double> root = square_root(weights, d);
  const SymmetricEigen found =
      symmetric_eigen(symmetric_product(symmetric_product(root, covariance(samples.values), d), root, d), d);
  std::vector<float> map(root.size());
  for (int rank = 0; rank < d; ++rank) {
    const double* vector = &found.vectors[static_cast<std::size_t>(rank) * d];
    const int column = rank % groups * kGroup + rank / groups;
    for (int i = 0; i < d; ++i) {
      double sum = 0;
      for (int j = 0; j < d; ++j) sum += root[static_cast<std::size_t>(i) * d + j] * vector[j];
      map[static_cast<std::size_t>(i) * d + column] = static_cast<float>(sum);
    }
  }
  return map;
}

constexpr TransformLearner kLearners[] = {
    {"smooth", smoothing_factors}, {"scale", scale_factors},  {"amax", largest_magnitudes},
    {"mean", channel_means},       {"pca", value_directions}, {"oscar", attended_directions, true},
    {"nova", nova_map, true},
};

}  // namespace

const TransformLearner* find_transform_learner(const std::string& kind) {
  for (const TransformLearner& learner : kLearners)
    if (kind == learner.kind) return &learner;
  return nullptr;
}

}  // namespace kvant
