#include "format/page_description.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/float16.h"
#include "format/format.h"
#include "format/trellis_code.h"
#include "format/trellis_gain.h"

namespace kvant {
namespace {

// Reads a page using only its description, in double precision, one value at a time.
class DescribedPage {
 public:
  DescribedPage(const FormatDescription& format, const std::byte* page, int d, const float* codebook)
      : f_(format), p_(format.page), page_(page), d_(d), codebook_(codebook) {
    code_bytes_ = p_.plain() ? 0 : std::size_t{kPageTokens} * (d / p_.channels) * p_.bits / 8;
  }

  double value(int token, int channel) const {
    if (p_.kind == CodeKind::bf16) return float_from_bf16(half(2 * (token * d_ + channel)));
    if (p_.kind == CodeKind::f16) return float_from_f16(half(2 * (token * d_ + channel)));
    return factor(token) * on_grid(token, channel, number(token, channel)) + mean(channel);
  }

 private:
  std::uint16_t half(std::size_t at) const { return read<std::uint16_t>(at); }
  double half_parameter(std::size_t i) const { return float_from_f16(half(code_bytes_ + 2 * i)); }
  template <class T>
  T read(std::size_t at) const {
    T x;
    std::memcpy(&x, page_ + at, sizeof x);
    return x;
  }
  int bit(std::size_t at) const { return std::to_integer<int>(page_[at / 8] >> (at % 8)) & 1; }
  int code(int token, int nth) const {
    int x = 0;
    const std::size_t first = (std::size_t{1} * token * (d_ / p_.channels) + nth) * p_.bits;
    for (int i = 0; i < p_.bits; ++i) x |= bit(first + i) << i;
    return x;
  }
  double number(int token, int channel) const {
    const int nth = channel / p_.channels, x = code(token, nth);
    const double scale = f_.unit * (f_.of_unit_vectors ? 1 / std::sqrt(d_) : 1);
    switch (p_.kind) {
      case CodeKind::e4m3: {
        const int exponent = x >> 3 & 15, mantissa = x & 7;
        const double magnitude =
            exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
        return (x & 0x80) != 0 ? -magnitude : magnitude;
      }
      case CodeKind::level:
        return f_.levels[x] * scale;
      case CodeKind::state: {
        const int row = d_ * p_.bits;
        int state = 0;
        for (int i = 0; i < kTrellisBits; ++i)
          state |=
              bit(std::size_t{1} * token * row + ((channel + 1) * p_.bits - kTrellisBits + i + row) % row)
              << i;
        return state_level(kTrellisCodes[p_.bits - 1], state) * scale;
      }
      case CodeKind::vector: {
        const std::size_t centroids = std::size_t{1} << p_.bits;
        const float* own = codebook_ + (p_.own_codebooks ? nth * centroids * p_.channels : 0);
        return own[x * p_.channels + channel % p_.channels];
      }
      default:
        return x;
    }
  }
  double on_grid(int token, int channel, double x) const {
    if (p_.grid == GridAxis::of_channels) {
      const std::size_t at = token / p_.group * d_ + channel, zeros = kPageTokens / p_.group * d_;
      return x * half_parameter(at) + half_parameter(zeros + at);
    }
    if (p_.grid == GridAxis::of_tokens) {
      const std::size_t n = p_.groups(d_), at = token * n + channel / p_.group;
      const double scale = half_parameter(at);
      if (!p_.symmetric) return x * scale + half_parameter(kPageTokens * n + at);
      return p_.bits == 1 ? (2 * x - 1) * scale : (x - (1 << (p_.bits - 1))) * scale;
    }
    if (p_.grid == GridAxis::of_integers) {
      const std::size_t at = code_bytes_ + token / 64 * d_ + channel;
      const double step = read<std::uint8_t>(at), zero = read<std::int8_t>(at + 2 * d_);
      const double integer = p_.as_printed ? (x + zero) * step : x * step + zero;
      return std::clamp(integer, -127.0, 127.0);
    }
    return x;
  }
  double factor(int token) const {
    switch (p_.factor) {
      case TokenFactor::half:
        return half_parameter(token);
      case TokenFactor::single:
        return read<float>(code_bytes_ + 4 * token);
      case TokenFactor::block:
        return read<float>(code_bytes_ + 4 * d_ + 4 * (token / 64));
      case TokenFactor::octave:
        return gain_of_code<double>(read<std::uint8_t>(code_bytes_ + token),
                                    read<float>(code_bytes_ + kPageTokens + d_),
                                    [](double x) { return std::exp2(x); });
      default:
        return 1;
    }
  }
  double mean(int channel) const {
    if (p_.factor != TokenFactor::octave) return 0;
    return read<std::int8_t>(code_bytes_ + kPageTokens + channel) *
           double{float_from_bf16(half(code_bytes_ + kPageTokens + d_ + 4))};
  }

  const FormatDescription& f_;
  const PageDescription& p_;
  const std::byte* page_;
  int d_;
  const float* codebook_;
  std::size_t code_bytes_ = 0;
};

class Description : public ::testing::TestWithParam<std::string> {};

TEST_P(Description, SaysWhatDecodingGives) {
  const Format& format = *find_format(GetParam());
  const auto description = format.describe();
  if (!description) GTEST_SKIP() << "has none";
  for (const int d : {64, 128}) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> values(std::size_t{kPageTokens} * d), decoded(values.size()),
        codebook(format.constant_size(d));
    for (float& x : values) x = normal(random);
    for (float& x : codebook) x = normal(random);
    Constants constants;
    if (!codebook.empty())
      constants.set(0, 0, Side::key, format.needed_constants().front(), std::vector<float>(codebook));
    const PageContext context{d, {&constants, 0, 0, Side::key}};
    std::vector<std::byte> page(format.page_bytes(d));
    format.encode(values.data(), {}, context, page.data());
    format.decode(page.data(), kPageTokens, context, decoded.data());
    const DescribedPage described(*description, page.data(), d, codebook.data());
    for (int token = 0; token < kPageTokens; ++token) {
      for (int c = 0; c < d; ++c) {
        const double expected = described.value(token, c);
        ASSERT_NEAR(decoded[token * d + c], expected, 1e-5 * (1 + std::fabs(expected)))
            << "token " << token << ", channel " << c << " of " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Description, ::testing::ValuesIn(format_names()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

}  // namespace
}  // namespace kvant
