#include <algorithm>
#include <cstdio>

#include "format/test_pages.h"

namespace kvant::gear_test {
namespace {

constexpr const char* kPattern = "gear<r>-<tok or ch format>";

struct Shape {
  int rank = 0;
  std::string inner;

  explicit Shape(const std::string& name) : inner(name.substr(name.find('-') + 1)) {
    std::sscanf(name.c_str(), "gear%d", &rank);
  }
};

// Holds a square symmetric matrix [n, n].
struct Symmetric {
  int n;
  std::vector<double> entries;
  double& at(int row, int column) { return entries[static_cast<std::size_t>(row) * n + column]; }
};

// Makes entry (p, q) zero by one rotation of Jacobi's method.
void rotate(Symmetric& matrix, int p, int q) {
  if (matrix.at(p, q) == 0) return;
  const double angle = std::atan2(2 * matrix.at(p, q), matrix.at(q, q) - matrix.at(p, p)) / 2;
  const double c = std::cos(angle);
  const double s = std::sin(angle);
  for (int i = 0; i < matrix.n; ++i) {
    const double ip = matrix.at(i, p);
    matrix.at(i, p) = c * ip - s * matrix.at(i, q);
    matrix.at(i, q) = s * ip + c * matrix.at(i, q);
  }
  for (int i = 0; i < matrix.n; ++i) {
    const double pi = matrix.at(p, i);
    matrix.at(p, i) = c * pi - s * matrix.at(q, i);
    matrix.at(q, i) = s * pi + c * matrix.at(q, i);
  }
}

// Returns the squared singular values of errors [kPageTokens, d], largest first, by Jacobi's method on their
// Gram matrix.
std::vector<double> squared_singular_values(const std::vector<double>& errors, int d) {
  Symmetric gram{d, std::vector<double>(static_cast<std::size_t>(d) * d)};
  for (int token = 0; token < kPageTokens; ++token) {
    const double* row = errors.data() + static_cast<std::ptrdiff_t>(token) * d;
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) gram.at(i, j) += row[i] * row[j];
    }
  }
  for (int sweep = 0; sweep < 8; ++sweep) {
    for (int p = 0; p < d; ++p) {
      for (int q = p + 1; q < d; ++q) rotate(gram, p, q);
    }
  }
  std::vector<double> squares(d);
  for (int i = 0; i < d; ++i) squares[i] = gram.at(i, i);
  std::sort(squares.rbegin(), squares.rend());
  return squares;
}

double sum_of_squares(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

// Returns values - decoded, with zeros for left-out tokens.
std::vector<double> errors_of(const std::vector<float>& values, const std::vector<float>& decoded, int d,
                              const TokenMask& left_out) {
  std::vector<double> errors(values.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (!left_out.test(static_cast<int>(i) / d)) errors[i] = double{values[i]} - decoded[i];
  }
  return errors;
}

// Returns by how much the GEAR page reduces the inner format's squared error, relative to the reduction by
// the best rank-r approximation.
double part_of_the_best(const std::string& name, int d, const std::vector<float>& values,
                        const TokenMask& left_out) {
  const Shape shape(name);
  const TestFormat inner(shape.inner, d);
  const TestFormat test(name, d);
  const std::vector<double> error =
      errors_of(values, inner.decode(inner.encode(values, left_out)), d, left_out);
  const std::vector<double> rest = errors_of(values, test.decode(test.encode(values, left_out)), d, left_out);
  const std::vector<double> squares = squared_singular_values(error, d);
  double best = 0;
  for (int k = 0; k < shape.rank; ++k) best += squares[k];
  return (sum_of_squares(error) - sum_of_squares(rest)) / best;
}

TEST(LowRankResidual, TakesTheInnerFormatsBitsAndThoseOfTheFactors) {
  for (const std::string& name : members_of(kPattern)) {
    const Shape shape(name);
    for (const int d : kTestHeadDims) {
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d),
                       find_format(shape.inner)->bits(d) + 16.0 * shape.rank * (1.0 / d + 1.0 / kPageTokens))
          << name;
    }
  }
  EXPECT_DOUBLE_EQ(find_format("gear4-ch2g128")->bits(128), 3.25);
}

// Checks the byte map. A value must equal its inner value + sum over k of A[token][k] * B[k][channel].
TEST(LowRankResidual, IsTheProductOfTheStoredFactorsOnTopOfTheInnerPage) {
  for (const std::string& name : members_of(kPattern)) {
    const Shape shape(name);
    for (const int d : {64, 80}) {
      const TestFormat test(name, d);
      const TestFormat inner(shape.inner, d);
      const std::vector<float> values = key_like_values(d, 1);
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<std::byte> inner_page = inner.encode(values);
      ASSERT_TRUE(std::equal(inner_page.begin(), inner_page.end(), page.begin())) << name;
      const std::vector<float> inner_values = inner.decode(inner_page);
      const std::vector<float> decoded = test.decode(page);
      const std::byte* a = page.data() + inner_page.size();
      const std::byte* b = a + 2 * kPageTokens * shape.rank;
      for (int token = 0; token < kPageTokens; ++token) {
        for (int i = 0; i < d; ++i) {
          double value = inner_values[token * d + i];
          for (int k = 0; k < shape.rank; ++k)
            value += f16_at(a + 2 * (token * shape.rank + k)) * f16_at(b + 2 * (k * d + i));
          ASSERT_NEAR(decoded[token * d + i], value, 1e-4) << name;
        }
      }
    }
  }
}

// The errors of independent channels have nearly equal singular values, which is the worst case of power
// iteration.
TEST(LowRankResidual, IsNearlyTheBestOfItsRank) {
  TokenMask few;
  for (const int token : {0, 1, 2, 3, 70}) few.set(token);
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : {64, 80}) {
      for (const TokenMask& left_out : {TokenMask{}, few}) {
        const double part = part_of_the_best(name, d, key_like_values(d, 2), left_out);
        EXPECT_LT(part, 1.0001) << name << ", d = " << d;
        EXPECT_GT(part, 0.93) << name << ", d = " << d;
      }
    }
  }
}

TEST(LowRankResidual, TakesErrorsOfItsRankWholly) {
  // One bit represents a constant token exactly, so three tokens with other patterns cause all errors.
  const int d = 64;
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d, 1.0F);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int token : {9, 40, 100}) {
    for (int i = 0; i < d; ++i) values[token * d + i] = normal(random);
  }
  const TestFormat inner("tok1g64", d);
  const TestFormat test("gear4-tok1g64", d);
  EXPECT_GT(relative_rms_error(values, inner.decode(inner.encode(values))), 0.02);
  EXPECT_LT(relative_rms_error(values, test.decode(test.encode(values))), 1e-4);
}

TEST(LowRankResidual, LeavesLeftOutTokensToTheInnerFormat) {
  const int d = 64;
  TokenMask left_out;
  for (const int token : {0, 5, 127}) left_out.set(token);
  const TestFormat test("gear4-ch2g128", d);
  const std::vector<std::byte> page = test.encode(key_like_values(d, 4), left_out);
  const std::byte* a = page.data() + find_format("ch2g128")->page_bytes(d);
  for (int token = 0; token < kPageTokens; ++token) {
    bool offset = true;
    for (int k = 0; k < 4; ++k) offset = offset && f16_at(a + 2 * (token * 4 + k)) == 0;
    EXPECT_EQ(offset, left_out.test(token)) << token;
  }
}

}  // namespace
}  // namespace kvant::gear_test
