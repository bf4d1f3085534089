#include "calibrate/head_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvant::head_attention_test {
namespace {

constexpr int kRows = 200, kDim = 8, kLeftOut = 4;  // kLeftOut is the number of the sink's tokens

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

// For query r, each token of the first page contributes p (dO . v - m) * scale, where m is the mean of dO . v
// under the weights p. Returns the norm of these contributions.
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
  Matrix k_gradient, v_gradient, q_gradient;
  std::vector<double> weights(kRows, -1.0);
  HeadAttention attention({.scale = 0.5F}, q.view(), k.view(), v.view());
  for (int block = 0; block < 2; ++block) {
    const int first = block * kPageTokens, n = std::min(kPageTokens, kRows - first);
    attention.attend_back(block, gradient.view().slice(first, n), q_gradient.view().slice(first, n),
                          {k_gradient.view(), v_gradient.view(), weights.data()});
  }
  for (int r = 0; r < kPageTokens; ++r) EXPECT_EQ(weights[r], 0) << r;
  for (int r = kPageTokens; r < kRows; ++r) {
    const double expected = length_of_derivative(q, k, v, gradient, r, 0.5);
    EXPECT_NEAR(weights[r], expected, 1e-4 * expected + 1e-6) << r;
  }
}

// Returns the output of query r, [kDim]. The rows of `sealed_k` and `sealed_v` replace the rows of the first
// page.
std::vector<double> output(Matrix& q, Matrix& sealed_k, Matrix& k, Matrix& v, Matrix& sealed_v, int r,
                           const AttentionShape& shape) {
  std::vector<double> weights(r + 1), out(kDim);
  double sum = 0;
  for (int i = shape.window > 0 ? std::max(0, r + 1 - shape.window) : 0; i <= r; ++i) {
    double score = shape.scale * dot(q.view().row(r), (i < kPageTokens ? sealed_k : k).view().row(i));
    if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
    sum += weights[i] = std::exp(score);
  }
  for (int i = 0; i <= r; ++i)
    for (int c = 0; c < kDim; ++c)
      out[c] += weights[i] / sum * (i < kPageTokens ? sealed_v : v).view().row(i)[c];
  return out;
}

TEST(HeadAttention, TellsWhatErrorsOnSealedPagesDo) {
  Matrix q = normal_rows(1), k = normal_rows(2), v = normal_rows(3), gradient = normal_rows(4),
         held = normal_rows(5);
  for (const AttentionShape& shape :
       {AttentionShape{.scale = 0.5F}, AttentionShape{.scale = 0.5F, .softcap = 2, .window = 120}}) {
    HeadAttention attention(shape, q.view(), k.view(), v.view());
    attention.look_at(1, gradient.view().slice(kPageTokens, kRows - kPageTokens));
    for (const Side side : kSides) {
      std::vector<double> effects(kRows - kPageTokens, 1.0);
      attention.add_effects(side, packed_pages(side, held.view(), side == Side::key ? k.view() : v.view()),
                            effects.data());
      for (int r = kPageTokens; r < kRows; ++r) {
        const std::vector<double> with = output(q, side == Side::key ? held : k, k, v,
                                                side == Side::value ? held : v, r, shape),
                                  without = output(q, k, k, v, v, r, shape);
        double expected = 1;
        for (int c = 0; c < kDim; ++c) expected += gradient.view().row(r)[c] * (with[c] - without[c]);
        EXPECT_NEAR(effects[r - kPageTokens], expected, 1e-5) << side_name(side) << r;
      }
    }
  }
}

}  // namespace
}  // namespace kvant::head_attention_test
