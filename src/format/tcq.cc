// tcq<B> stores each token as a trellis-coded row (trellis.h) around the mean of each channel; B is 1 to 6.
// The format suits values after a Hadamard transform, whose coordinates are nearly normal. Neighbouring
// tokens share the mean, which is a large part of K, because K rotates slowly in the low frequencies of RoPE.
//
// Bytes of a page, d channels:
//   codes     [kPageTokens][d]  B bits each: every token is a circular little-endian bit stream of its own,
//                               d * B / 8 bytes
//   gains     [kPageTokens]     u8
//   means     [d]               i8: of the tokens that are not left out, in steps; -127 to 127
//   loudest   [1]               f32: the largest gain of the tokens that are not left out, at most 2^126
//   step      [1]               bf16: of the means, 1/127 of the largest one, at most 2^125
// Bits per value: B + 8 / d + (8 + 48 / d) / kPageTokens.
//
// value = step * mean of the channel + gain of the token * level[state] * scale, with the table of B
// (trellis.h). The gain of code c is loudest * 2^(-c / 32), and 0 for c = 255. Each token's remainder,
// including the rounding error of the means, is divided by its root mean square and encoded. The token's gain
// is then fitted (fitted_gain in trellis_gain.h). Left-out tokens affect neither the means nor the loudest
// gain.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/exp_series.h"
#include "base/float16.h"
#include "base/simd_clones.h"
#include "format/bit_packing.h"
#include "format/code_block.h"
#include "format/error_metric.h"
#include "format/families.h"
#include "format/name_reader.h"
#include "format/shaped_encoder.h"
#include "format/trellis.h"
#include "format/trellis_encoder.h"
#include "format/trellis_gain.h"
#include "format/trellis_parameters.h"

namespace kvant {
namespace {

static_assert(trellis_page_bytes(2, 64) == 2246 && trellis_page_bytes(3, 64) == 3270);
static_assert(trellis_page_bytes(2, 128) == 4358 && trellis_page_bytes(4, 128) == 8454);

constexpr double kMaxGain = 0x1p126;  // kMaxGain times the largest level, 3.4, is still finite.

// Computes the gains of n codes, given the loudest gain `unit`. A series around f = 1/2 gives 2^-f for the
// fraction f of an octave, which lets the loop vectorize. The relative error is 1e-7.
KVANT_SIMD_CLONES void widen_gains(const std::uint8_t* codes, int n, float unit, float* gains) {
  constexpr float kLn2 = 0.69314718F, kRootHalf = 0.70710678F;
  const float at_half = unit * kRootHalf;
  for (int i = 0; i < n; ++i) {
    const int code = codes[i];
    const float x = (0.5F - static_cast<float>(code % kGainSteps) * (1.0F / kGainSteps)) * kLn2;
    const auto octaves = (127U - static_cast<std::uint32_t>(code / kGainSteps)) << 23;
    // The mask replaces a conditional expression, which would branch.
    const std::uint32_t heard = 0U - static_cast<std::uint32_t>(code != kSilent);
    gains[i] = at_half * std::bit_cast<float>(octaves & heard) * exp_series(x);
  }
}

std::uint8_t code_of_gain(double gain, double loudest) {
  if (!(gain > 0) || !(loudest > 0)) return kSilent;
  const double steps = std::nearbyint(kGainSteps * std::log2(loudest / gain));
  return static_cast<std::uint8_t>(std::clamp(steps, 0.0, static_cast<double>(kSilent)));
}

// Returns the mean of each channel [d] over the tokens that are not left out.
std::array<float, kMaxHeadDim> channel_means(const float* values, const TokenMask& left_out, int d) {
  std::array<double, kMaxHeadDim> sums{};
  int n = 0;
  for (int token = 0; token < kPageTokens; ++token) {
    if (left_out.test(token)) continue;
    ++n;
    for (int i = 0; i < d; ++i) sums[i] += values[static_cast<std::ptrdiff_t>(token) * d + i];
  }
  std::array<float, kMaxHeadDim> means{};
  for (int i = 0; i < d && n > 0; ++i) means[i] = static_cast<float>(sums[i] / n);
  return means;
}

// Stores the means and their step in the form that pages have.
void store_means(const std::array<float, kMaxHeadDim>& means, int d, std::byte* parameters) {
  float largest = 0;
  for (int i = 0; i < d; ++i) largest = std::max(largest, std::fabs(means[i]));
  const std::uint16_t stored = bf16_from_float(step_of_means(largest));
  const float step = float_from_bf16(stored), reciprocal = step > 0 ? 1 / step : 0;
  for (int i = 0; i < d; ++i) {
    const int code = code_of_mean(means[i], reciprocal, [](float x) { return std::nearbyint(x); });
    parameters[kTrellisMeansAt + i] = static_cast<std::byte>(code);
  }
  std::memcpy(parameters + trellis_step_at(d), &stored, sizeof stored);
}
KVANT_SIMD_CLONES void widen_means(const std::int8_t* codes, int d, float step, float* means) {
  for (int i = 0; i < d; ++i) means[i] = static_cast<float>(codes[i]) * step;
}
void load_means(const std::byte* parameters, int d, float* means) {
  std::uint16_t step;
  std::memcpy(&step, parameters + trellis_step_at(d), sizeof step);
  widen_means(reinterpret_cast<const std::int8_t*>(parameters + kTrellisMeansAt), d, float_from_bf16(step),
              means);
}

float load_loudest(const std::byte* parameters, int d) {
  float loudest;
  std::memcpy(&loudest, parameters + trellis_loudest_at(d), sizeof loudest);
  return loudest;
}

// Returns a . b. Products of F32 numbers are exact in double, and the sum has a fixed order, so every
// instruction set gives the same sum.
KVANT_SIMD_CLONES double dot(const float* a, const float* b, int d) {
  constexpr int kSums = 8;
  double sums[kSums] = {};
  for (int i = 0; i < d; i += kSums)
    for (int j = 0; j < kSums; ++j) sums[j] += static_cast<double>(a[i + j]) * b[i + j];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Subtracts the means from a token.
void subtract_means(const float* values, const float* means, int d, float* rest) {
  for (int i = 0; i < d; ++i) rest[i] = values[i] - means[i];
}

// Holds the gains of an octave, and the ranges of numbers that round to each gain.
struct OctaveOfGains {
  std::array<double, kGainSteps + 1> gains;
  std::array<double, kGainSteps + 1> ends;  // upper end of the numbers that round to each gain
  // first[bits] is the index of the gain to which the least number with the highest fraction bits `bits`
  // rounds.
  std::array<std::uint8_t, kGainSteps> first{};
  OctaveOfGains() {
    for (int i = 0; i <= kGainSteps; ++i) {
      gains[i] = std::exp2(static_cast<double>(i) / kGainSteps);
      ends[i] = std::exp2((i + 0.5) / kGainSteps);
    }
    for (int bits = 0; bits < kGainSteps; ++bits)
      while (1 + static_cast<double>(bits) / kGainSteps >= ends[first[bits]]) ++first[bits];
  }
};

// Returns the power of 2^(1 / kGainSteps) that is nearest to `gain` > 0. The result equals the result of exp2
// and log2, but takes a third of their time.
double rounded_gain(double gain) {
  static const OctaveOfGains kOctave;
  constexpr int kFractionBits = 52;
  constexpr std::uint64_t kFraction = (std::uint64_t{1} << kFractionBits) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(gain);
  const auto of_octave = std::bit_cast<double>((bits & kFraction) | std::bit_cast<std::uint64_t>(1.0));
  int i = kOctave.first[(bits & kFraction) >> (kFractionBits - std::countr_zero(unsigned{kGainSteps}))];
  for (int step = 0; step < 2; ++step)
    i += of_octave >= kOctave.ends[i] ? 1 : 0;  // The highest bits leave up to two steps open.
  return kOctave.gains[i] * std::bit_cast<double>(bits & ~kFraction);
}

// Divides x [d] by its root mean square, rounded to a power of 2^(1 / kGainSteps). Zeros remain zeros.
void normalize(const float* x, int d, float* normal) {
  const double squares = dot(x, x, d);
  const double reciprocal = squares > 0 ? rounded_gain(std::sqrt(d / squares)) : 0;
  for (int i = 0; i < d; ++i) normal[i] = static_cast<float>(x[i] * reciprocal);
}

double unbiased_share(Side side) {
  return side == Side::key ? kUnbiasedKeys : kUnbiasedValues;
}

// Fits a gain for a token x and its decoded shape c, where `energy` is <x, x>, `along` is <x, c>, and
// `length` is <c, c>.
double fit(double energy, double along, double length, double unbiased_share) {
  const double gain = fitted_gain(energy, along, length, unbiased_share,
                                  [](double base, double exponent) { return std::pow(base, exponent); });
  return gain > 0 ? std::min(rounded_gain(gain), kMaxGain) : 0;
}

double fit(const float* x, const float* shape, int d, Side side) {
  return fit(dot(x, x, d), dot(x, shape, d), dot(shape, shape, d), unbiased_share(side));
}

// Fits the gain at which `shape` has the same length as x in the metric, measured along x. On average, x.M.x
// is the mean square of the scores.
double fit(const float* x, const float* shape, const ErrorMetric& metric) {
  const ErrorMetric::Products products = metric.products(x, shape);
  return fit(products.aa, products.ab, products.bb, 1.0);
}

class TcqFormat : public Format {
 public:
  TcqFormat(const std::string& name, const TrellisTable& table)
      : Format(name),
        table_(table),
        levels_(trellis_levels(table)),
        encoder_(table),
        shaped_encoder_(table) {}

  std::size_t page_bytes(int head_dim) const override { return trellis_page_bytes(table_.bits, head_dim); }
  int least_head_dim() const override { return kLeastTrellisRow; }

  void encode(const float* values, const TokenMask& left_out, const PageContext& context,
              std::byte* page) const override {
    const int d = context.head_dim;
    std::byte* parameters = codes_of(page, kPageTokens, d);
    store_means(channel_means(values, left_out, d), d, parameters);
    std::array<float, kMaxHeadDim> means;
    load_means(parameters, d, means.data());
    const std::array<double, kPageTokens> gains = encode_shapes(values, means.data(), context, page);
    float loudest = 0;
    for (int token = 0; token < kPageTokens; ++token)
      if (!left_out.test(token)) loudest = std::max(loudest, static_cast<float>(gains[token]));
    for (int token = 0; token < kPageTokens; ++token)
      parameters[token] = std::byte{code_of_gain(gains[token], loudest)};
    std::memcpy(parameters + trellis_loudest_at(d), &loudest, sizeof loudest);
  }

  void decode(const std::byte* page, int n_tokens, const PageContext& context, float* values) const override {
    const int d = context.head_dim;
    const std::byte* parameters = codes_of(page, kPageTokens, d);
    const float loudest = load_loudest(parameters, d);
    std::array<float, kMaxHeadDim> means;
    load_means(parameters, d, means.data());
    std::array<float, kMaxHeadDim> shape;
    for (int token = 0; token < n_tokens; ++token) {
      const auto gain = static_cast<float>(gain_of_code<double>(
          std::to_integer<int>(parameters[token]), loudest, [](double x) { return std::exp2(x); }));
      decode_trellis(codes_of(page, token, d), d, table_.bits, levels_, shape.data());
      float* row = values + static_cast<std::ptrdiff_t>(token) * d;
      for (int i = 0; i < d; ++i) row[i] = means[i] + gain * shape[i];
    }
  }

  std::optional<FormatDescription> describe() const override {
    FormatDescription description;
    description.page.kind = CodeKind::state;
    description.page.bits = table_.bits;
    description.page.factor = TokenFactor::octave;
    description.unit = table_.scale;
    return description;
  }
  bool shapes_errors() const override { return true; }
  std::optional<CodeScheme> code_scheme(int /*head_dim*/) const override {
    return CodeScheme{.meaning = CodeMeaning::state,
                      .bits = table_.bits,
                      .group_bytes = table_.bits,
                      .group_channels = kCodeBlock,
                      .token_groups = 1,
                      .channel_blocks = 1};
  }

  CodeTable code_table(const PageContext& /*context*/) const override {
    CodeTable table;
    table.scale = table_.scale;
    return table;
  }

  void read_parameters(const std::byte* page, const PageContext& context, const CodeTable& table,
                       CodeParameters& parameters) const override {
    const int d = context.head_dim;
    const std::byte* stored = codes_of(page, kPageTokens, d);
    parameters.channel_offset.resize(d);
    load_means(stored, d, parameters.channel_offset.data());
    parameters.token_scale.resize(kPageTokens);
    widen_gains(reinterpret_cast<const std::uint8_t*>(stored), kPageTokens,
                load_loudest(stored, d) * table.scale, parameters.token_scale.data());
  }

 private:
  template <class Byte>
  Byte* codes_of(Byte* page, int token, int d) const {
    return page + static_cast<std::ptrdiff_t>(token) * (d * table_.bits / 8);
  }

  // Writes the tokens' codes and returns their gains.
  std::array<double, kPageTokens> encode_shapes(const float* values, const float* means,
                                                const PageContext& context, std::byte* page) const {
    const int d = context.head_dim;
    const ErrorMetric* metric = context.metric;
    KVANT_CHECK(metric == nullptr || metric->steps().size() == static_cast<std::size_t>(d),
                "a metric of a different head size");
    std::vector<float> rest(static_cast<std::size_t>(kPageTokens) * d);
    std::vector<float> normal(rest.size());
    std::vector<std::uint16_t> symbols(rest.size());
    for (int token = 0; token < kPageTokens; ++token) {
      const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(token) * d;
      subtract_means(values + first, means, d, rest.data() + first);
      normalize(rest.data() + first, d, normal.data() + first);
    }
    if (metric != nullptr) {
      shaped_encoder_.encode(normal.data(), kPageTokens, *metric, symbols.data());
    } else {
      encoder_.encode(normal.data(), kPageTokens, d, symbols.data());
    }
    std::array<double, kPageTokens> gains;
    std::array<float, kMaxHeadDim> shape;
    for (int token = 0; token < kPageTokens; ++token) {
      const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(token) * d;
      std::byte* codes = codes_of(page, token, d);
      pack_codes(symbols.data() + first, d, table_.bits, codes);
      decode_trellis(codes, d, table_.bits, levels_, shape.data());
      gains[token] = metric != nullptr ? fit(rest.data() + first, shape.data(), *metric)
                                       : fit(rest.data() + first, shape.data(), d, context.constants.side);
    }
    return gains;
  }

  const TrellisTable& table_;
  TrellisLevels levels_;
  TrellisEncoder encoder_;
  ShapedEncoder shaped_encoder_;
};

std::unique_ptr<Format> parse_tcq(const std::string& name) {
  NameReader reader(name);
  if (!reader.take("tcq")) return nullptr;
  const int bits = reader.take_number();
  if (!reader.at_end() || bits < 1 || bits > kMaxTrellisBits) return nullptr;
  return std::make_unique<TcqFormat>(name, trellis_tables()[bits - 1]);
}

}  // namespace

const FormatFamily& tcq_family() {
  static const FormatFamily family{
      "tcq<B>",
      "trellis-coded rows of B bits (1 to 6) around the channels' means, 8-bit gain per token",
      {"tcq1", "tcq2", "tcq3", "tcq4", "tcq5", "tcq6"},
      parse_tcq};
  return family;
}

}  // namespace kvant
