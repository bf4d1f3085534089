#include <algorithm>
#include <cstdio>

#include "format/test_pages.h"

namespace kvant::tok_test {
namespace {

constexpr const char* kPattern = "tok<B>g<N>[s|c<P>[l]]";

std::vector<std::string> unclipped_members() {
  std::vector<std::string> members = members_of(kPattern);
  std::erase_if(members, [](const std::string& name) { return name.find('c') != std::string::npos; });
  return members;
}

// Parses a member's name independently of the code under test.
struct Shape {
  int bits = 0;
  int group = 0;
  bool symmetric = false;

  explicit Shape(const std::string& name) {
    std::sscanf(name.c_str(), "tok%dg%d", &bits, &group);
    symmetric = name.back() == 's';
  }
  int groups(int d) const { return (d + group - 1) / group; }
  int last_code() const { return (1 << bits) - 1; }
};

// Holds what one group stores, read by the specification's byte map.
struct StoredGroup {
  double scale = 0;
  double offset = 0;  // value = offset + code * step
  double step = 0;
};

StoredGroup stored_group(const std::vector<std::byte>& page, const Shape& shape, int d, int token,
                         int group) {
  const std::byte* scales = page.data() + kPageTokens * d * shape.bits / 8;
  const int n = shape.groups(d);
  StoredGroup stored;
  stored.scale = f16_at(scales + 2 * (token * n + group));
  stored.step = stored.scale;
  if (!shape.symmetric) {
    stored.offset = f16_at(scales + 2 * (kPageTokens * n + token * n + group));
  } else if (shape.bits == 1) {
    stored.step = 2 * stored.scale;
    stored.offset = -stored.scale;
  } else {
    stored.offset = -stored.scale * (1 << (shape.bits - 1));
  }
  return stored;
}

// Computes the specified scale in double precision, and the largest effect of f16's rounding on that scale.
double designed_scale(const float* x, int n, const Shape& shape) {
  double low = x[0];
  double high = x[0];
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    low = std::min(low, double{x[i]});
    high = std::max(high, double{x[i]});
    sum += std::fabs(double{x[i]});
  }
  if (!shape.symmetric) return (high - low) / shape.last_code();
  if (shape.bits == 1) return sum / n;
  const double extreme = high > -low ? high : low;
  return shape.bits == 8 ? std::fabs(extreme) / 127 : -extreme / (1 << (shape.bits - 1));
}

void check_group(const TestFormat& test, const std::vector<float>& values, const std::vector<std::byte>& page,
                 const std::vector<float>& decoded, const Shape& shape, int token, int group) {
  const int d = test.d();
  const int begin = group * shape.group;
  const int n = std::min(shape.group, d - begin);
  const float* x = values.data() + token * d + begin;
  const StoredGroup stored = stored_group(page, shape, d, token, group);
  const double designed = designed_scale(x, n, shape);
  const double zero_rounding = shape.symmetric ? 0 : f16_rounding(stored.offset);
  ASSERT_NEAR(stored.scale, designed, 1.01 * f16_rounding(designed) + zero_rounding / shape.last_code());
  if (!shape.symmetric) {
    const double low = *std::min_element(x, x + n);
    ASSERT_NEAR(stored.offset, low, f16_rounding(low));
  }
  for (int i = 0; i < n; ++i) {
    const std::size_t at = static_cast<std::size_t>(token) * d + begin + i;
    const int code = code_from_stream(page.data(), at, shape.bits);
    const double value = stored.offset + code * stored.step;
    ASSERT_EQ(decoded[at], static_cast<float>(value));
    const double error = std::fabs(value - x[i]);
    const double slack = 1e-5 * (std::fabs(stored.offset) + std::fabs(stored.step));
    for (const int other : {std::max(code - 1, 0), std::min(code + 1, shape.last_code())}) {
      ASSERT_LE(error, std::fabs(stored.offset + other * stored.step - x[i]) + slack);
    }
    // All decoded values lie within half a step, with exceptions at the ends of the grid. The exceptions come
    // from f16's rounding, from the missing code of symmetric grids, and from the means of one-bit grids.
    const double ends = zero_rounding + shape.last_code() * f16_rounding(designed);
    const double missing = shape.symmetric && shape.bits < 8 ? std::fabs(designed) / 2 : 0;
    if (!(shape.symmetric && shape.bits == 1)) {
      ASSERT_LE(error, std::fabs(designed) / 2 + missing + ends);
    }
  }
}

void check_page(const TestFormat& test, const std::vector<float>& values) {
  const Shape shape(test.format().name());
  const std::vector<std::byte> page = test.encode(values);
  const std::vector<float> decoded = test.decode(page);
  for (int token = 0; token < kPageTokens; ++token) {
    for (int group = 0; group < shape.groups(test.d()); ++group) {
      check_group(test, values, page, decoded, shape, token, group);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(TokenGroups, TakeTheBitsOfTheDesignsTable) {
  for (const std::string& name : unclipped_members()) {
    const Shape shape(name);
    for (const int d : kTestHeadDims) {
      const double parameters = (shape.symmetric ? 16.0 : 32.0) * shape.groups(d) / d;
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), shape.bits + parameters) << name << ", d = " << d;
    }
  }
  EXPECT_DOUBLE_EQ(find_format("tok4g32s")->bits(128), 4.5);
  EXPECT_DOUBLE_EQ(find_format("tok2g128")->bits(128), 2.25);
  EXPECT_DOUBLE_EQ(find_format("tok2g128")->bits(64), 2.5);
}

TEST(TokenGroups, StoreTheNearestGridPointOfTheDesignedGrid) {
  for (const std::string& name : unclipped_members()) {
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      check_page(test, key_like_values(d, 1));
      std::vector<float> small = key_like_values(d, 2);
      for (float& value : small) value *= 1e-6F;  // Scales and offsets become f16 denormals.
      check_page(test, small);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TokenGroups, KeepConstantGroupsExactToF16) {
  for (const std::string& name : unclipped_members()) {
    for (const float constant : {0.0F, 0.7F, -123.4F, 1000.1F, 3e-7F}) {
      const TestFormat test(name, 80);
      const std::vector<float> decoded =
          test.decode(test.encode(std::vector<float>(kPageTokens * 80, constant)));
      const Shape shape(name);
      const double scale_rounding = shape.symmetric && shape.bits == 8 ? 127 * f16_rounding(constant / 127)
                                    : shape.symmetric && shape.bits > 1
                                        ? std::fabs(constant) * 0x1p-11 + (1 << (shape.bits - 1)) * 0x1p-25
                                        : f16_rounding(constant);
      for (const float value : decoded) ASSERT_NEAR(value, constant, scale_rounding) << test.label();
    }
  }
}

TEST(TokenGroups, SaturateHugeValuesAtTheEndsOfTheLargestGrid) {
  std::vector<float> values(kPageTokens * 64, 1.0F);
  values[0] = 1e30F;
  values[1] = -1e30F;
  const std::vector<float> asymmetric =
      TestFormat("tok4g32", 64).decode(TestFormat("tok4g32", 64).encode(values));
  EXPECT_EQ(asymmetric[0], 14 * 65504.0F);  // offset -65504, code 15
  EXPECT_EQ(asymmetric[1], -65504.0F);
  const std::vector<float> symmetric =
      TestFormat("tok8g32s", 64).decode(TestFormat("tok8g32s", 64).encode(values));
  EXPECT_EQ(symmetric[0], 127 * 65504.0F);
  // The second group keeps its own scale.
  EXPECT_EQ(symmetric[40],
            TestFormat("tok8g32s", 64)
                .decode(TestFormat("tok8g32s", 64).encode(std::vector<float>(kPageTokens * 64, 1.0F)))[40]);
}

TEST(TokenGroups, MatchAHandWorkedSymmetricGroup) {
  // The largest magnitude x* = 4 gives the scale -4 / 8 = -0.5. Therefore 4 gets code 0 (value 4), -3.9 gets
  // code 15 (value -3.5), and 0.3 gets code 7 (value 0.5).
  std::vector<float> values(kPageTokens * 64, 0.0F);
  values[0] = 4.0F;
  values[1] = -3.9F;
  values[2] = 0.3F;
  const TestFormat test("tok4g32s", 64);
  const std::vector<std::byte> page = test.encode(values);
  EXPECT_EQ(page[0], std::byte{0xf0});
  EXPECT_EQ(code_from_stream(page.data(), 2, 4), 7);
  EXPECT_EQ(f16_at(page.data() + kPageTokens * 32), -0.5);
  const std::vector<float> decoded = test.decode(page);
  EXPECT_EQ(decoded[0], 4.0F);
  EXPECT_EQ(decoded[1], -3.5F);
  EXPECT_EQ(decoded[2], 0.5F);
  EXPECT_EQ(decoded[3], 0.0F);
}

// tok2g128c<P> must equal tok2g128 of values that are clamped to the magnitude of rank floor(P d / 100).
TEST(TokenGroups, ClipAtAQuantileOfATokensMagnitudes) {
  for (const int percent : {92, 96}) {
    for (const int d : kTestHeadDims) {
      std::vector<float> values = key_like_values(d, 7);
      const TestFormat clipped("tok2g128c" + std::to_string(percent), d), plain("tok2g128", d);
      const std::vector<std::byte> page = clipped.encode(values);
      for (int token = 0; token < kPageTokens; ++token) {
        float* row = values.data() + static_cast<std::ptrdiff_t>(token) * d;
        std::vector<float> sorted(row, row + d);
        std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
        const float limit = std::fabs(sorted[d * percent / 100]);
        for (int i = 0; i < d; ++i) row[i] = std::min(std::max(row[i], -limit), limit);
      }
      EXPECT_EQ(page, plain.encode(values)) << percent << " " << d;
    }
  }
  for (const char* unknown : {"tok2g128c49", "tok2g128c100", "tok2g128c", "tok2g128sc92", "tok2g128c92s"})
    EXPECT_EQ(find_format(unknown), nullptr) << unknown;
}

// Checks every token of tok2g128c<P>l against OSCAR's rule in double precision: the mean m and the deviation
// s of the clipped values give thresholds at m and m +- 0.98107 s, and values at m + (code - 1.5) 1.16
// * 1.00637 s.
TEST(TokenGroups, MeasureLloydMaxStepsInDeviationsOfTheClippedGroup) {
  for (const int percent : {92, 96}) {
    for (const int d : kTestHeadDims) {
      const TestFormat test("tok2g128c" + std::to_string(percent) + "l", d);
      const std::vector<float> values = key_like_values(d, 7);
      const std::vector<std::byte> page = test.encode(values);
      const std::vector<float> decoded = test.decode(page);
      for (int token = 0; token < kPageTokens; ++token) {
        std::vector<float> row(values.begin() + token * d, values.begin() + (token + 1) * d), sorted = row;
        std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
        const float limit = std::fabs(sorted[d * percent / 100]);
        for (float& x : row) x = std::min(std::max(x, -limit), limit);
        for (int begin = 0; begin < d; begin += 128) {
          const int n = std::min(128, d - begin);
          double mean = 0, squares = 0;
          for (int i = begin; i < begin + n; ++i) mean += double{row[i]} / n;
          for (int i = begin; i < begin + n; ++i) squares += (row[i] - mean) * (row[i] - mean) / n;
          const double s = std::sqrt(squares), step = 1.16 * 1.00637 * s, low = mean - 1.5 * step;
          for (int i = begin; i < begin + n; ++i) {
            const int code = code_from_stream(page.data(), token * d + i, 2);
            const double z = (row[i] - mean) / s;
            const double least = code == 0 ? -1e9 : (code - 2) * 0.98107;
            const double most = code == 3 ? 1e9 : (code - 1) * 0.98107;
            ASSERT_GE(z, least - 1e-6) << test.label();
            ASSERT_LE(z, most + 1e-6) << test.label();
            ASSERT_NEAR(decoded[token * d + i], low + code * step,
                        f16_rounding(low) + 3 * f16_rounding(step) + 1e-6 * std::fabs(low));
          }
        }
      }
    }
  }
  for (const char* unknown : {"tok2g128l", "tok3g128c96l", "tok2g128sl", "tok2g128c96ll"})
    EXPECT_EQ(find_format(unknown), nullptr) << unknown;
}

// An independent simulation of tokens of 128 normal values gave 0.156 and 0.128 for uniform steps, and 0.141
// for Lloyd-Max steps.
TEST(TokenGroups, LeaveTheSimulatedErrorsWhenClipped) {
  const std::pair<const char*, double> expected[] = {
      {"tok2g128c96", 0.156}, {"tok2g128c92", 0.128}, {"tok2g128c96l", 0.141}};
  for (const auto& [name, error] : expected) {
    const TestFormat test(name, 128);
    double found = 0;
    for (unsigned seed = 1; seed <= 6; ++seed) {
      const std::vector<float> values = gaussian_values(128, seed);
      found += std::pow(relative_rms_error(values, test.decode(test.encode(values))), 2) / 6;
    }
    EXPECT_NEAR(found, error, 0.003) << name;
  }
}

}  // namespace
}  // namespace kvant::tok_test
