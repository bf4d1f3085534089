#include <algorithm>
#include <cstdio>

#include "format/lloyd_max.h"
#include "format/test_pages.h"

namespace kvant::lm_test {
namespace {

constexpr const char* kPattern = "lm<B>[u|n]";

struct Shape {
  int bits = 0;
  char rule = ' ';  // the suffix, or the last digit of a name without suffix

  explicit Shape(const std::string& name) {
    std::sscanf(name.c_str(), "lm%d", &bits);
    rule = name.back();
  }
};

double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

double nearest_distance(double x, const std::vector<double>& levels) {
  double best = 1e300;
  for (const double level : levels) best = std::min(best, std::fabs(level - x));
  return best;
}

// Checks one token against the specification, in double precision.
void check_token(const TestFormat& test, const std::vector<float>& values, const std::vector<std::byte>& page,
                 const std::vector<float>& decoded, const std::vector<double>& levels, int token) {
  const Shape shape(test.format().name());
  const int d = test.d();
  const std::vector<double> x(values.begin() + token * d, values.begin() + (token + 1) * d);
  const double gain = f16_at(page.data() + kPageTokens * d * shape.bits / 8 + 2 * token);
  const double length = std::sqrt(dot(x, x));
  std::vector<double> c(d);
  for (int i = 0; i < d; ++i) {
    const int code = code_from_stream(page.data(), static_cast<std::size_t>(token) * d + i, shape.bits);
    const double position = x[i] / length * std::sqrt(d);
    ASSERT_LE(std::fabs(levels[code] - position), nearest_distance(position, levels) + 1e-5);
    c[i] = levels[code] / std::sqrt(d);
    ASSERT_NEAR(decoded[token * d + i], gain * c[i], 1e-6 * std::fabs(gain));
  }
  const double designed = shape.rule == 'u'   ? dot(x, x) / dot(x, c)
                          : shape.rule == 'n' ? std::sqrt(dot(x, x) / dot(c, c))
                                              : dot(x, c) / dot(c, c);
  ASSERT_NEAR(gain, designed, f16_rounding(designed) + 1e-5 * designed);
}

TEST(LloydMaxTokens, TakeTheBitsOfTheDesignsTable) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), Shape(name).bits + 16.0 / d) << name;
    }
  }
  EXPECT_DOUBLE_EQ(find_format("lm3")->bits(128), 3.125);
  EXPECT_DOUBLE_EQ(find_format("lm3")->bits(64), 3.25);
}

TEST(LloydMaxTokens, StoreTheNearestLevelsAndTheDesignedGain) {
  for (const std::string& name : members_of(kPattern)) {
    const std::vector<double> levels = lloyd_max_levels(Shape(name).bits);
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      const std::vector<float> values = key_like_values(d, 1);
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<float> decoded = test.decode(page);
      for (int token = 0; token < kPageTokens; ++token) {
        check_token(test, values, page, decoded, levels, token);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(LloydMaxTokens, LeaveTheErrorOfTheQuantizerOnGaussianValues) {
  const double errors[] = {0.1175, 0.03454, 0.009497, 0.002499};  // Max (1960), 2 to 5 bits
  for (int bits = 2; bits <= 5; ++bits) {
    const TestFormat test("lm" + std::to_string(bits), 128);
    const std::vector<float> values = gaussian_values(128, 2);
    EXPECT_NEAR(relative_rms_error(values, test.decode(test.encode(values))), std::sqrt(errors[bits - 2]),
                0.04 * std::sqrt(errors[bits - 2]));
  }
}

TEST(LloydMaxTokens, KeepScoresWithThemselvesWhenUnbiased) {
  const TestFormat test("lm2u", 64);
  const std::vector<float> values = gaussian_values(64, 3);
  const std::vector<float> decoded = test.decode(test.encode(values));
  for (int token = 0; token < kPageTokens; ++token) {
    double with_decoded = 0;
    double with_itself = 0;
    for (int i = token * 64; i < (token + 1) * 64; ++i) {
      with_decoded += double{values[i]} * decoded[i];
      with_itself += double{values[i]} * values[i];
    }
    EXPECT_NEAR(with_decoded, with_itself, 1e-3 * with_itself);
  }
}

TEST(LloydMaxTokens, KeepTheLengthOfATokenWithTheSuffixN) {
  for (const char* name : {"lm3n", "lm4n"}) {
    const TestFormat test(name, 128);
    const std::vector<float> values = key_like_values(128, 3), decoded = test.decode(test.encode(values));
    for (int token = 0; token < kPageTokens; ++token) {
      const auto length = [&](const std::vector<float>& rows) {
        const std::vector<double> row(rows.begin() + token * 128, rows.begin() + (token + 1) * 128);
        return std::sqrt(dot(row, row));
      };
      EXPECT_NEAR(length(decoded), length(values), 6e-4 * length(values));
    }
  }
}

TEST(LloydMaxTokens, KeepZerosAndSaturateHugeGains) {
  for (const std::string& name : members_of(kPattern)) {
    const TestFormat test(name, 64);
    for (const float value : test.decode(test.encode(std::vector<float>(kPageTokens * 64, 0.0F)))) {
      ASSERT_EQ(value, 0);
    }
    const std::vector<std::byte> page = test.encode(std::vector<float>(kPageTokens * 64, -1e38F));
    EXPECT_EQ(f16_at(page.data() + page.size() - 2), 65504);
    EXPECT_LT(test.decode(page)[5], -1000);
  }
}

}  // namespace
}  // namespace kvant::lm_test
