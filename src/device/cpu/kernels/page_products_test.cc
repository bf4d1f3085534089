// Compares products with the codes of pages with exact products. The rounding errors of queries and weights
// must stay small compared with the errors of the codes.
#include "device/cpu/kernels/page_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/kernels/testing/small_number_error.h"
#include "format/code_order.h"
#include "format/test_pages.h"

namespace kvant::cpu {
namespace {

constexpr int kRows = 16;

class PageProductsOf : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (find_kernels(GetParam()) == nullptr)
      GTEST_SKIP() << "this processor (or this build) has no " << GetParam();
  }
  static const ByteKernels& kernels() { return *find_kernels(GetParam()); }
  static testing::SmallSteps small_steps() { return testing::small_steps(&kernels()); }
};
#define KVANT_INSTRUCTION_SET(set) INSTANTIATE_TEST_SUITE_P(set, PageProductsOf, ::testing::Values(#set));
#include "device/cpu/kernels/instruction_sets.def"
#undef KVANT_INSTRUCTION_SET

// Holds a sealed page, its values before sealing, and what the page decodes to.
struct SealedPage {
  SealedPage(const std::string& name, Side side, int d, std::uint32_t seed)
      : format(with_code_order(*find_format(name), side, d)),
        values(gaussian_values(d, seed)),
        decoded(values.size()),
        bytes(format->page_bytes(d)) {
    context.head_dim = d;
    context.table = format->code_table(context);
    format->encode(values.data(), TokenMask{}, context, bytes.data());
    format->decode(bytes.data(), kPageTokens, context, decoded.data());
  }
  PageSide side() const { return {format.get(), bytes.data(), &context}; }

  std::unique_ptr<const Format> format;
  PageContext context;
  std::vector<float> values, decoded;
  std::vector<std::byte> bytes;
};

// Returns the product of n numbers of `a` with every `stride`-th number of `b`.
double product(const float* a, const float* b, int n, std::ptrdiff_t stride = 1) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{a[i]} * b[i * stride];
  return sum;
}

// Some of the last rows have outliers, so small numbers would be too coarse for 4 bits. A kernel serves these
// rows together with others.
bool has_outlier(int row) {
  return row >= kRows / 2 && row % 4 == 3;
}

// Holds the squared errors of each row.
class RowErrors {
 public:
  void add(int row, double found, double exact, double before_sealing) {
    of_rounding_[row] += (found - exact) * (found - exact);
    of_codes_[row] += (exact - before_sealing) * (exact - before_sealing);
  }
  // Kernels that have products of small numbers must use them, which costs more than two bytes.
  void expect_within_share(bool small, const std::string& what) const {
    for (int r = 0; r < kRows; ++r) {
      EXPECT_LE(of_rounding_[r], kRoundingShare * of_codes_[r]) << what << r;
      if (has_outlier(r)) continue;
      EXPECT_EQ(of_rounding_[r] > 1e-4 * of_codes_[r], small) << what << r;
    }
  }

 private:
  double of_rounding_[kRows]{}, of_codes_[kRows]{};
};

TEST_P(PageProductsOf, RoundQueriesWithinTheirShareOfTheError) {
  for (const char* format : {"tcq2", "tcq3", "tcq4"}) {
    for (const int d : {64, 128, 256}) {
      const SealedPage page(format, Side::key, d, 5);
      std::vector<float> q = normal_numbers(std::size_t{kRows} * d, 3);
      for (int r = 0; r < kRows; ++r) q[r * d + r] = has_outlier(r) ? 60.0F : q[r * d + r];
      std::vector<float> scores(kRows * kPageTokens);
      PageProducts products(kernels());
      products.begin({q.data(), kRows, d}, {}, Products::real);
      products.score(page.side(), kPageTokens, nullptr, {scores.data(), kRows, kPageTokens});
      RowErrors errors;
      for (int r = 0; r < kRows; ++r) {
        const float* row = q.data() + r * d;
        for (int t = 0; t < kPageTokens; ++t)
          errors.add(r, scores[r * kPageTokens + t], product(row, &page.decoded[t * d], d),
                     product(row, &page.values[t * d], d));
      }
      errors.expect_within_share(small_steps().of_queries > 0, fmt::format("{}, d = {}, row ", format, d));
    }
  }
}

TEST_P(PageProductsOf, RoundWeightsWithinTheirShareOfTheError) {
  constexpr int kPages = 3;
  for (const char* format : {"tcq2", "tcq3", "tcq4"}) {
    for (const int d : {64, 128, 256}) {
      std::vector<float> found(std::size_t{kRows} * d), exact(found), before(found);
      const std::vector<float> q(found);
      PageProducts products(kernels());
      products.begin({q.data(), kRows, d}, {}, Products::real);
      for (int i = 0; i < kPages; ++i) {
        const SealedPage page(format, Side::value, d, i);
        std::vector<float> weights = normal_numbers(kRows * kPageTokens, 50 + i);
        for (float& x : weights) x = std::exp(1.5F * x - 6);
        for (int r = 0; r < kRows; ++r) {
          if (has_outlier(r)) weights[r * kPageTokens + r] = 20;
          for (int c = 0; c < d; ++c) {
            exact[r * d + c] +=
                static_cast<float>(product(&weights[r * kPageTokens], &page.decoded[c], kPageTokens, d));
            before[r * d + c] +=
                static_cast<float>(product(&weights[r * kPageTokens], &page.values[c], kPageTokens, d));
          }
        }
        products.mix(page.side(), kPageTokens, nullptr, {weights.data(), kRows, kPageTokens},
                     {found.data(), kRows, d});
      }
      products.end({found.data(), kRows, d});
      RowErrors errors;
      for (int i = 0; i < kRows * d; ++i) errors.add(i / d, found[i], exact[i], before[i]);
      errors.expect_within_share(small_steps().of_weights > 0, fmt::format("{}, d = {}, row ", format, d));
    }
  }
}

// 127 weights of less than half a step would all become 0, and all outputs would be too small.
TEST_P(PageProductsOf, KeepTheSumOfSmallWeights) {
  std::vector<float> weights(kPageTokens, 0.4F / 254);
  weights[9] = 1;
  WeightRounding rounding{.share = 1};
  ByteWeights numbers;
  const WeightSums sums =
      kernels().prepare_weights(weights.data(), {nullptr, nullptr}, 0, kPageTokens, &rounding, numbers);
  EXPECT_EQ(numbers.small, small_steps().of_weights > 0);
  EXPECT_NEAR(sums.weights, 1 + 127 * 0.4 / 254, 1e-5);
  // Each of at most 16 lanes keeps an error of half a step.
  EXPECT_NEAR(static_cast<double>(numbers.sum) * numbers.unit, sums.weights, 8.0 / 126);
}

// A page costs no more than the share of what all pages so far allow.
TEST_P(PageProductsOf, RoundWeightsToTwoBytesOnceTheShareIsUsedUp) {
  if (small_steps().of_weights == 0) GTEST_SKIP() << "has no products of small numbers";
  const std::vector<float> flat(kPageTokens, 1.0F);
  std::vector<float> peak(kPageTokens, 0.0F);
  peak[77] = 3;
  WeightRounding rounding{.share = 1e-4F};
  ByteWeights numbers;
  std::vector<bool> small;
  for (int page = 0; page < 20; ++page) {
    const std::vector<float>& weights = page < 2 ? flat : peak;
    kernels().prepare_weights(weights.data(), {nullptr, nullptr}, 0, kPageTokens, &rounding, numbers);
    small.push_back(numbers.small);
    EXPECT_LE(rounding.error, rounding.share * rounding.squares);
  }
  EXPECT_TRUE(small.front());
  EXPECT_FALSE(small.back());
}

}  // namespace
}  // namespace kvant::cpu
