#include <algorithm>
#include <cmath>

#include "format/test_pages.h"
#include "format/trellis.h"

namespace kvant::tcq_test {
namespace {

constexpr const char* kPattern = "tcq<B>";

int bits_of(const std::string& name) {
  return name.back() - '0';
}

// Reads the bytes after a page's codes as tcq.cc specifies. The bytes are gains, the means' codes, the
// loudest gain, and the means' step, which is the upper half of an F32.
struct Parameters {
  const std::byte* gains;
  int d;
  int code(int channel) const { return static_cast<std::int8_t>(gains[kPageTokens + channel]); }
  float loudest() const { return f32(gains + kPageTokens + d); }
  float step() const {
    const std::byte bytes[4] = {{}, {}, gains[kPageTokens + d + 4], gains[kPageTokens + d + 5]};
    return f32(bytes);
  }
  double mean(int channel) const { return double{step()} * code(channel); }
  static float f32(const std::byte* at) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
};
Parameters parameters_of(const std::vector<std::byte>& page, int bits, int d) {
  return {page.data() + kPageTokens * d * bits / 8, d};
}

TEST(TrellisCodedTokens, TakeTheirBitsAGainAndTheMeans) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      EXPECT_DOUBLE_EQ(find_format(name)->bits(d), bits_of(name) + 8.0 / d + 8.0 / 128 + 48.0 / (128 * d));
    }
  }
}

// Decodes the bytes independently, by the specification in tcq.cc.
TEST(TrellisCodedTokens, DecodeAsSpecified) {
  for (const std::string& name : members_of(kPattern)) {
    for (const int d : kTestHeadDims) {
      const TestFormat test(name, d);
      SCOPED_TRACE(test.label());
      const int bits = bits_of(name);
      const TrellisTable& table = trellis_tables()[bits - 1];
      const std::vector<std::byte> page = test.encode(key_like_values(d, 1));
      const std::vector<float> decoded = test.decode(page);
      const Parameters stored = parameters_of(page, bits, d);
      for (int token = 0; token < kPageTokens; ++token) {
        const double gain =
            stored.loudest() * std::pow(2.0, -std::to_integer<int>(stored.gains[token]) / 32.0);
        for (int i = 0; i < d; ++i) {
          int state = 0;
          for (int bit = 0; bit < 8; ++bit) {
            const int at = ((i + 1) * bits - 8 + bit + d * bits) % (d * bits);
            state |= code_from_stream(page.data() + token * d * bits / 8, at, 1) << bit;
          }
          const double mean = stored.mean(i);
          const double expected = mean + gain * table.scale * table.levels[state];
          ASSERT_NEAR(decoded[token * d + i], expected, 1e-5 * (std::fabs(mean) + gain));
        }
      }
    }
  }
}

TEST(TrellisCodedTokens, KeepTheMeansOfTheTokensThatCount) {
  constexpr int kDim = 64;
  std::vector<float> values = key_like_values(kDim, 2);
  TokenMask left_out;
  for (const int token : {0, 1, 2, 3, 77}) {
    left_out.set(token);
    for (int i = 0; i < kDim; ++i) values[token * kDim + i] = 1000;
  }
  const TestFormat test("tcq2", kDim);
  const std::vector<std::byte> page = test.encode(values, left_out);
  const Parameters stored = parameters_of(page, 2, kDim);
  double largest = 0;
  for (int i = 0; i < kDim; ++i) {
    double mean = 0;
    for (int token = 0; token < kPageTokens; ++token)
      if (!left_out.test(token)) mean += values[token * kDim + i] / (kPageTokens - 5.0);
    ASSERT_NEAR(stored.mean(i), mean, (0.5 + 1e-4) * stored.step());
    largest = std::max(largest, std::fabs(mean));
  }
  EXPECT_NEAR(stored.step() * 127, largest, 0x1p-8 * largest);
}

// The tokens' codes absorb the rounding error of a channel's mean. If one channel's mean is 100 standard
// deviations, all means are multiples of .8 standard deviations. The rounding of the means adds 5 % to the
// variance of the tokens, and half of that to the errors.
TEST(TrellisCodedTokens, MakeUpForTheRoundingOfMeans) {
  constexpr int kDim = 128;
  const std::vector<float> plain = gaussian_values(kDim, 6);
  std::vector<float> biased = plain;
  for (int t = 0; t < kPageTokens; ++t) biased[t * kDim + 5] += 100;
  for (const int bits : {2, 4}) {
    const TestFormat test("tcq" + std::to_string(bits), kDim);
    const auto error = [&](const std::vector<float>& values) {
      const std::vector<float> decoded = test.decode(test.encode(values));
      double squares = 0;
      for (std::size_t i = 0; i < values.size(); ++i)
        squares += (double{values[i]} - decoded[i]) * (double{values[i]} - decoded[i]);
      return std::sqrt(squares / static_cast<double>(values.size()));
    };
    EXPECT_LT(error(biased), 1.05 * error(plain)) << bits;
  }
}

TEST(TrellisCodedTokens, ErrLessThanScalarLevelsOfTheSameBitsOnGaussianValues) {
  const std::vector<float> values = gaussian_values(128, 3);
  for (int bits = 2; bits <= 4; ++bits) {
    const TestFormat trellis("tcq" + std::to_string(bits), 128);
    const TestFormat scalar("lm" + std::to_string(bits), 128);
    EXPECT_LT(relative_rms_error(values, trellis.decode(trellis.encode(values))),
              0.9 * relative_rms_error(values, scalar.decode(scalar.encode(values))))
        << bits;
  }
}

// Computes <decoded, x> / <x, x> of each token, without the means. For values, the ratio must be 1. Least
// squares would give the squared cosine between x and its codes. For keys, the logarithm of the ratio must be
// a quarter of the squared cosine's logarithm.
TEST(TrellisCodedTokens, ShortenNoValuesAndKeysLittle) {
  constexpr int kDim = 128;
  constexpr double kGainRounding = 0.011;  // half a step of 1/32 octave
  std::vector<float> values = gaussian_values(kDim, 4);
  for (int i = 0; i < kDim; ++i) {  // The loop makes the means 0.
    double mean = 0;
    for (int t = 0; t < kPageTokens; ++t) mean += values[t * kDim + i] / double{kPageTokens};
    for (int t = 0; t < kPageTokens; ++t) values[t * kDim + i] -= static_cast<float>(mean);
  }
  for (const std::string& name : members_of(kPattern)) {
    for (const Side side : {Side::key, Side::value}) {
      const Format& format = *find_format(name);
      const Constants none;
      const PageContext context{kDim, {&none, 0, 0, side}};
      std::vector<std::byte> page(format.page_bytes(kDim));
      std::vector<float> decoded(values.size());
      format.encode(values.data(), {}, context, page.data());
      format.decode(page.data(), kPageTokens, context, decoded.data());
      for (int t = 0; t < kPageTokens; ++t) {
        double energy = 0, along = 0, length = 0;
        for (int i = t * kDim; i < (t + 1) * kDim; ++i) {
          energy += double{values[i]} * values[i];
          along += double{values[i]} * decoded[i];
          length += double{decoded[i]} * decoded[i];
        }
        const double expected = side == Side::value ? 1 : std::pow(along * along / (energy * length), 0.25);
        ASSERT_NEAR(along / energy, expected, 1.2 * kGainRounding) << name << ", token " << t;
      }
    }
  }
}

// A gain that is rounded only after the search is off by a step of 1/32 octave divided by sqrt(12), .0063,
// along the token. With 6 bits the codes correct two thirds of that error.
TEST(TrellisCodedTokens, MakeUpForTheRoundingOfGains) {
  constexpr int kDim = 64;
  const std::vector<float> values = gaussian_values(kDim, 5);
  const TestFormat test("tcq6", kDim);
  const std::vector<std::byte> page = test.encode(values);
  const std::vector<float> decoded = test.decode(page);
  const Parameters stored = parameters_of(page, 6, kDim);
  EXPECT_NEAR(std::remainder(32 * std::log2(double{stored.loudest()}), 1), 0, 1e-5);
  double squares = 0;
  for (int t = 0; t < kPageTokens; ++t) {
    double energy = 0, error = 0;
    for (int i = 0; i < kDim; ++i) {
      const double rest = values[t * kDim + i] - stored.mean(i);
      energy += rest * rest;
      error += rest * (double{decoded[t * kDim + i]} - values[t * kDim + i]);
    }
    squares += error / energy * (error / energy);
  }
  EXPECT_LT(std::sqrt(squares / kPageTokens), 0.65 * 0.0063);
}

TEST(TrellisCodedTokens, KeepConstantPagesAndSilentTokens) {
  for (const std::string& name : members_of(kPattern)) {
    const TestFormat test(name, 64);
    for (const float value : test.decode(test.encode(std::vector<float>(kPageTokens * 64, 0.75F))))
      ASSERT_NEAR(value, 0.75F, 0.75F / 127);           // one step of the means
    std::vector<float> values(kPageTokens * 64, 0.0F);  // Two loud tokens have a mean of 0.
    for (int i = 0; i < 64; ++i) values[i] = i % 2 == 0 ? 8.0F : -8.0F;
    for (int i = 0; i < 64; ++i) values[64 + i] = -values[i];
    const std::vector<float> decoded = test.decode(test.encode(values));
    for (int at = 2 * 64; at < kPageTokens * 64; ++at) ASSERT_EQ(decoded[at], 0);
  }
}

}  // namespace
}  // namespace kvant::tcq_test
