// Computes KVLinC's feature maps in double precision, which are the expected result in tests of the
// correction kernels. A feature map consists of the softmaxes of two matrix products.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace kvant::cuda {

inline constexpr int kMapColumns = 128;  // features of one softmax

inline std::vector<float> normal_numbers(std::size_t n, float deviation, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// Returns the features of x, [softmax(x W1), softmax(x W2)]. `maps` holds W1 and W2 as [2][d][kMapColumns].
inline std::vector<double> features_of(const float* maps, const std::vector<double>& x) {
  std::vector<double> features;
  for (int half = 0; half < 2; ++half) {
    std::vector<double> y(kMapColumns);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (int j = 0; j < kMapColumns; ++j) y[j] += x[i] * maps[(half * x.size() + i) * kMapColumns + j];
    const double top = *std::max_element(y.begin(), y.end());
    double sum = 0;
    for (double& z : y) sum += z = std::exp(z - top);
    for (double& z : y) features.push_back(z / sum);
  }
  return features;
}

}  // namespace kvant::cuda
