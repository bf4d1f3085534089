#include "base/code_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kvant {
namespace {

// The input has codes of every size, rows with an outlier, a row of zeros, and sizes that do not fill the
// strips.
TEST(CodeGemm, IsTheProductWithTheValuesOfTheCodes) {
  const CodeGemm* gemm = code_gemm();
  if (gemm == nullptr) GTEST_SKIP() << "this processor (or this build) has no products of codes";
  constexpr int kRows = 7, kInputs = 96, kColumns = 37, kBlocks = kInputs / kCodeBlockSize;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kInputs);
  for (float& value : x) value = normal(random);
  x[5] = 1000;
  std::fill(x.begin() + kInputs, x.begin() + 2 * kInputs, 0.0F);
  CodePanel panel;
  NumberRows rows;
  make_room(panel, kInputs);
  make_room(rows, kRows, kInputs);
  for (std::uint8_t& code : panel.bytes) code = static_cast<std::uint8_t>(random() % 256);
  for (float& scale : panel.scale) scale = normal(random);
  for (float& offset : panel.offset) offset = 100 * normal(random);
  std::vector<float> y(kRows * kColumns, 7.0F);
  gemm->round_rows(x.data(), kInputs, 0, 3, kInputs, rows.view());
  gemm->round_rows(x.data(), kInputs, 3, kRows, kInputs, rows.view());
  gemm->multiply(rows.view(), 0, 4, kInputs, panel.view(), kColumns, y.data(), kColumns);
  gemm->multiply(rows.view(), 4, kRows, kInputs, panel.view(), kColumns, y.data(), kColumns);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      double sum = 0, allowed = 0;
      for (int block = 0; block < kBlocks; ++block) {
        double largest = 0, codes = 0, magnitude = 0;
        for (int i = block * kCodeBlockSize; i < (block + 1) * kCodeBlockSize; ++i) {
          const double value = x[r * kInputs + i], code = panel.bytes[(i / 4 * kCodePanel + c) * 4 + i % 4];
          const double scale = panel.scale[block * kCodePanel + c];
          sum += value * (scale * code + panel.offset[block * kCodePanel + c]);
          largest = std::max(largest, std::abs(value));
          codes += std::abs(scale * code + panel.offset[block * kCodePanel + c]);
          magnitude +=
              std::abs(value) * (std::abs(scale * code) + std::abs(panel.offset[block * kCodePanel + c]));
        }
        allowed += largest / 65000 * codes + 1e-6 * magnitude;  // half a unit of 16 bits, plus F32 rounding
      }
      ASSERT_NEAR(y[r * kColumns + c], sum, allowed) << r << ", " << c;
    }
  }
}

// As with F32 products, a broken activation must show in its own row and in no other row.
TEST(CodeGemm, GivesNanForRowsThatAreNotFinite) {
  const CodeGemm* gemm = code_gemm();
  if (gemm == nullptr) GTEST_SKIP() << "this processor (or this build) has no products of codes";
  constexpr int kRows = 3, kInputs = 64;
  using Limits = std::numeric_limits<float>;
  CodePanel panel;
  NumberRows rows;
  make_room(panel, kInputs);
  make_room(rows, kRows, kInputs);
  std::fill(panel.bytes.begin(), panel.bytes.end(), std::uint8_t{3});
  std::fill(panel.scale.begin(), panel.scale.end(), 1.0F);
  for (const float bad :
       {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
    for (int at = 0; at < kInputs; ++at) {
      std::vector<float> x(kRows * kInputs, 1.0F), y(kRows * kCodePanel);
      x[kInputs + at] = bad;
      gemm->round_rows(x.data(), kInputs, 0, kRows, kInputs, rows.view());
      gemm->multiply(rows.view(), 0, kRows, kInputs, panel.view(), kCodePanel, y.data(), kCodePanel);
      for (int i = 0; i < kCodePanel; ++i) {
        ASSERT_NEAR(y[i], 3 * kInputs, 1e-3);
        ASSERT_TRUE(std::isnan(y[kCodePanel + i])) << bad << " at " << at;
        ASSERT_NEAR(y[2 * kCodePanel + i], 3 * kInputs, 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace kvant
