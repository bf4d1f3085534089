// Tests of gtq compare widths and errors with the formulas of the paper.
#include <array>
#include <cmath>
#include <random>

#include "format/channel_energy.h"
#include "format/test_pages.h"

namespace kvant {
namespace {

struct Coded {
  const Format* format;
  Constants constants;
  PageContext context;

  Coded(const std::string& name, std::vector<float> energies)
      : format(find_format(name)), context{static_cast<int>(energies.size()), {&constants, 0, 0, Side::key}} {
    constants.set(0, 0, Side::key, kChannelEnergy, std::move(energies));
  }
  // Returns the mean squared error of each channel.
  std::vector<double> errors(const std::vector<float>& values) const {
    const int d = context.head_dim;
    std::vector<std::byte> page(format->page_bytes(d));
    format->encode(values.data(), {}, context, page.data());
    std::vector<float> decoded(values.size());
    format->decode(page.data(), kPageTokens, context, decoded.data());
    std::vector<double> errors(d);
    for (std::size_t i = 0; i < values.size(); ++i)
      errors[i % d] += std::pow(double{values[i]} - decoded[i], 2) / kPageTokens;
    return errors;
  }
};

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double x : values) total += x;
  return total;
}

// The best 2 and 4 levels for normal numbers have mean squared errors of .3634 and .1175 (Max 1960, Table I).
TEST(BlockGtq, LeavesMaxsErrorsWhereAllEnergiesAreOne) {
  const int d = 64;
  const std::vector<float> values = gaussian_values(d, 3);
  EXPECT_NEAR(sum(Coded("gtq1w1", std::vector<float>(d, 1)).errors(values)) / d, 0.3634, 0.01);
  EXPECT_NEAR(sum(Coded("gtq2w4", std::vector<float>(d, 1)).errors(values)) / d, 0.1175, 0.01);
  EXPECT_NEAR(sum(Coded("gtq3w5", std::vector<float>(d, 1)).errors(values)) / d, 0.0345, 0.005);
}

// Half of the channels have energy 60, and the other half have energy 1, at 3 bits on average. The loud
// channels get 4 bits and the quiet channels get 2 bits. A fifth bit of a loud channel would gain 3/4 60 /
// 4^4. The second bit of a quiet channel gains 3/4 / 4, which is slightly more, so the quiet channel gets the
// bit.
TEST(BlockGtq, GivesBitsWhereAlgorithmOneDoes) {
  const int d = 64;
  std::vector<float> energies(d, 1.0F), values = gaussian_values(d, 4);
  for (int i = 0; i < d; ++i) energies[i] = i % 4 < 2 ? 60.0F : 1.0F;
  const std::vector<double> errors = Coded("gtq3w8", energies).errors(values);
  const int half = d / 2;
  double loud = 0, quiet = 0;
  for (int i = 0; i < d; ++i) (i % 4 < 2 ? loud : quiet) += errors[i] / half;
  // For normal numbers, 4 and 2 bits leave squared errors of .0095 and .1175. There are 32 channels of each
  // width.
  EXPECT_NEAR(loud, 0.0095, 0.002);
  EXPECT_NEAR(quiet, 0.1175, 0.01);
}

// For any energies, no other allocation of the bits has a smaller sum of s 4^-b (Theorem 1). The test tries
// all allocations. The norms of a page reveal its widths, because each norm covers the channels of one width.
TEST(BlockGtq, LosesAsLittleAsTheBestOfAllAllocations) {
  constexpr int kBlocks = 4, kWidths = 4, kDim = 2 * kBlocks;
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 20; ++trial) {
    std::array<float, kBlocks> s;
    for (float& energy : s) energy = std::exp(2 * normal(random));
    std::vector<float> energies(kDim), values = gaussian_values(kDim, trial);
    // The blocks are the channels (0, 4), (1, 5) and so on.
    for (int i = 0; i < kDim; ++i) energies[i] = s[i % kBlocks];
    double least = HUGE_VAL;
    std::array<int, kBlocks> best{};
    for (int code = 0; code < 1 << 2 * kBlocks; ++code) {
      std::array<int, kBlocks> widths;
      double cost = 0;
      int spent = 0;
      for (int i = 0; i < kBlocks; ++i) {
        widths[i] = 1 + ((code >> 2 * i) & 3);
        spent += widths[i];
        cost += s[i] * std::pow(4, -widths[i]);
      }
      if (spent == 2 * kBlocks && cost < least) least = cost, best = widths;
    }
    const Coded coded("gtq2w4", energies);
    std::vector<std::byte> page(coded.format->page_bytes(kDim));
    coded.format->encode(values.data(), {}, coded.context, page.data());
    for (int width = 1; width <= kWidths; ++width) {
      double square = 0;
      for (int i = 0; i < kDim; ++i) square += best[i % kBlocks] == width ? std::pow(values[i], 2) : 0;
      const double norm = std::sqrt(square);
      EXPECT_NEAR(f16_at(page.data() + kPageTokens * kDim * 2 / 8 + 2 * (width - 1)), norm, norm * 1e-3)
          << trial;
    }
  }
}

TEST(BlockGtq, StoresTheNormOfEachWidth) {
  const int d = 8;
  std::vector<float> energies(d), values(std::size_t{1} * kPageTokens * d);
  for (int i = 0; i < d; ++i) energies[i] = i < 2 ? 1000.0F : 1.0F;
  for (int i = 0; i < d; ++i) values[i] = static_cast<float>(i + 1);  // token 0
  const Coded coded("gtq2w5", energies);
  std::vector<std::byte> page(coded.format->page_bytes(d));
  coded.format->encode(values.data(), {}, coded.context, page.data());
  const std::byte* norms = page.data() + kPageTokens * d * 2 / 8;
  // Channels 0 and 1 get 5 bits, and the other three blocks get 1 bit each.
  EXPECT_NEAR(f16_at(norms + 2 * 4), std::sqrt(1 + 4), 2e-3);
  EXPECT_NEAR(f16_at(norms), std::sqrt(9 + 16 + 25 + 36 + 49 + 64), 1e-2);
  for (const int absent : {1, 2, 3}) EXPECT_EQ(f16_at(norms + 2 * absent), 0);
}

}  // namespace
}  // namespace kvant
