#include "calibrate/head_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvant::head_attention_test {
namespace {

constexpr int kRows = 200, kDim = 8, kLeftOut = 4;  // the sink's tokens

struct Matrix {
  std::vector<float> values = std::vector<float>(std::size_t{kRows} * kDim);
  MatrixView<float> view() { return {values.data(), kRows, kDim}; }
};

Matrix normal_rows(std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix m;
  for (float& value : m.values) value = normal(random);
  return m;
}

double dot(const float* a, const float* b) {
  double sum = 0;
  for (int i = 0; i < kDim; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Of query r: sqrt of the sum of squares of p (dO.v - its mean under p) * scale over the first page's tokens.
double length_of_derivative(Matrix& q, Matrix& k, Matrix& v, Matrix& gradient, int r, double scale) {
  std::vector<double> p;
  double sum = 0, mean = 0, squares = 0;
  for (int i = 0; i <= r; ++i) sum += p.emplace_back(std::exp(scale * dot(q.view().row(r), k.view().row(i))));
  for (int i = 0; i <= r; ++i) mean += (p[i] /= sum) * dot(gradient.view().row(r), v.view().row(i));
  for (int i = kLeftOut; i < kPageTokens; ++i)
    squares += std::pow(p[i] * (dot(gradient.view().row(r), v.view().row(i)) - mean) * scale, 2);
  return std::sqrt(squares);
}

TEST(HeadAttention, WeighsQueriesByTheDerivativeByTheirSealedScores) {
  Matrix q = normal_rows(1), k = normal_rows(2), v = normal_rows(3), gradient = normal_rows(4);
  Matrix sealed_k, sealed_v, open_k, open_v, q_gradient;
  std::vector<double> weights(kRows, -1.0);
  HeadAttention attention({.scale = 0.5F}, q.view(), k.view(), v.view());
  for (int block = 0; block < 2; ++block) {
    const int first = block * kPageTokens, n = std::min(kPageTokens, kRows - first);
    attention.attend_back(block, gradient.view().slice(first, n), q_gradient.view().slice(first, n),
                          {sealed_k.view(), sealed_v.view(), open_k.view(), open_v.view(), weights.data()});
  }
  for (int r = 0; r < kPageTokens; ++r) EXPECT_EQ(weights[r], 0) << r;
  for (int r = kPageTokens; r < kRows; ++r) {
    const double expected = length_of_derivative(q, k, v, gradient, r, 0.5);
    EXPECT_NEAR(weights[r], expected, 1e-4 * expected + 1e-6) << r;
  }
}

}  // namespace
}  // namespace kvant::head_attention_test
