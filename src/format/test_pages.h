// Provides pages of values for the tests of formats, and formats with the model constants that they need. The
// values include inputs that have broken quantizers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/testing/emulation.h"
#include "format/format.h"

namespace kvant {

inline constexpr int kAllHeadDims[] = {64, 80, 96, 128, 256, 512};
inline constexpr std::span kTestHeadDims(kAllHeadDims, testing::kEmulated ? 2 : std::size(kAllHeadDims));

// Returns the members of the family whose pattern is `pattern`.
inline std::vector<std::string> members_of(const std::string& pattern) {
  for (const FormatFamily* family : format_families()) {
    if (family->pattern == pattern) return family->members;
  }
  ADD_FAILURE() << "no family " << pattern;
  return {};
}

// Returns Gaussian values [kPageTokens, d] with offsets and scales that differ by channel, as in K.
inline std::vector<float> key_like_values(int d, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> offset(d);
  std::vector<float> scale(d);
  for (int i = 0; i < d; ++i) {
    offset[i] = normal(random);
    scale[i] = std::exp(normal(random));
  }
  std::vector<float> values(static_cast<std::size_t>(kPageTokens) * d);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = offset[i % d] + scale[i % d] * normal(random);
  return values;
}

inline std::vector<float> normal_numbers(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// Returns standard Gaussian values [kPageTokens, d].
inline std::vector<float> gaussian_values(int d, std::uint32_t seed) {
  return normal_numbers(static_cast<std::size_t>(kPageTokens) * d, seed);
}

// Returns inputs that have broken quantizers. The pages are all zero, constant, denormal, huge, of mixed
// sizes, and with one outlier.
inline std::vector<std::vector<float>> extreme_pages(int d) {
  const std::size_t n = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<std::vector<float>> pages = {
      std::vector<float>(n, 0.0F),   std::vector<float>(n, 0.7F),       std::vector<float>(n, -123.4F),
      std::vector<float>(n, 1e-42F), std::vector<float>(n, 3.4028e38F), std::vector<float>(n, -3.4028e38F),
  };
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-130, 127.9F);
  std::vector<float> mixed(n);
  for (float& value : mixed) value = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0F : -1.0F);
  pages.push_back(mixed);
  std::vector<float> outlier = gaussian_values(d, 8);
  outlier[n / 2 + 3] = -2e5F;
  outlier[n - 1] = 1e30F;
  pages.push_back(outlier);
  std::vector<float> denormal = gaussian_values(d, 9);
  for (float& value : denormal) value *= 1e-40F;
  pages.push_back(denormal);
  std::vector<float> f16_denormal = gaussian_values(d, 10);
  for (float& value : f16_denormal) value *= 3e-7F;
  pages.push_back(f16_denormal);
  return pages;
}

// Combines a format with a head size and random numbers for the format's model constants.
class TestFormat {
 public:
  TestFormat(const std::string& name, int d) : format_(find_format(name)), d_(d) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (const std::string& constant : format_->needed_constants()) {
      std::vector<float> numbers(format_->constant_size(d));
      for (float& number : numbers) number = normal(random);
      constants_.set(0, 0, Side::key, constant, numbers);
    }
  }

  const Format& format() const { return *format_; }
  int d() const { return d_; }
  PageContext context() const { return {d_, {&constants_, 0, 0, Side::key}}; }
  std::string label() const { return format_->name() + ", d = " + std::to_string(d_); }

  std::vector<std::byte> encode(const std::vector<float>& values, const TokenMask& left_out = {}) const {
    std::vector<std::byte> page(format_->page_bytes(d_));
    format_->encode(values.data(), left_out, context(), page.data());
    return page;
  }
  std::vector<float> decode(const std::vector<std::byte>& page, int n_tokens = kPageTokens) const {
    std::vector<float> values(static_cast<std::size_t>(n_tokens) * d_);
    format_->decode(page.data(), n_tokens, context(), values.data());
    return values;
  }

 private:
  const Format* format_;
  int d_;
  Constants constants_;
};

// Returns the root of the mean squared error relative to the values' root mean square.
inline double relative_rms_error(const std::vector<float>& values, const std::vector<float>& decoded) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += (double{values[i]} - decoded[i]) * (double{values[i]} - decoded[i]);
    power += double{values[i]} * values[i];
  }
  return std::sqrt(error / power);
}

// Reads code i of a little-endian stream of codes, bit by bit.
inline int code_from_stream(const std::byte* stream, std::size_t i, int bits) {
  int code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const std::size_t at = i * bits + bit;
    code |= ((std::to_integer<int>(stream[at / 8]) >> (at % 8)) & 1) << bit;
  }
  return code;
}

// Reads the binary16 number at `at` by the definition in IEEE 754.
inline double f16_at(const std::byte* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Returns the largest rounding error of x in binary16, which is half a unit in the last place of a normal or
// denormal number.
inline double f16_rounding(double x) {
  return std::max(std::fabs(x) * 0x1p-11, 0x1p-25) * (1 + 1e-6);
}

}  // namespace kvant
