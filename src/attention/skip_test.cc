// Compares Sparse V, which skips V of tokens with small weights, with softmax weights in double precision.
#include <gtest/gtest.h>

#include "attention/attention_fixture.h"

namespace kvant::skip_test {
namespace {

using testing::attend_tokens;
using testing::kKeyRows;
using testing::kQueryRows;
using testing::kValueRows;
using testing::plan_for;
using testing::small_geometry;

constexpr int kSize = 64;

// The queries are sharp enough for weights from 1e-12 to 1.
std::vector<float> values_of(int layer, int head, int kind, int token) {
  return testing::token_values(layer, head, kind, token, kSize);
}

std::string with_skip(const std::string& recipe, const std::string& tau) {
  return recipe + ",skip=" + tau;
}

class Skip : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, Skip,
                         ::testing::Values("bf16", "k=ch4g128,v=tok4g128,sink=4,window=128",
                                           "k=tok8g32s,v=rhadamard:lm3",
                                           "k=prog4,v=prog4,tail=int8,products=integer"));

TEST_P(Skip, OfATinyThresholdChangesNothing) {
  const Geometry g = small_geometry(kSize, 4, 2, 2);
  Cache plain(plan_for(GetParam(), g), 0), skipping(plan_for(with_skip(GetParam(), "1e-30"), g), 0);
  const SequenceId a = plain.add(), b = skipping.add();
  const auto backend = make_reference_backend();
  for (const int n : {400, 1, 1}) {
    const bool is_prompt = n > 1;
    const auto expected = attend_tokens(plain, a, n, is_prompt, values_of);
    const auto actual = attend_tokens(skipping, b, n, is_prompt, values_of, *backend);
    for (std::size_t i = 0; i < expected[1].size(); ++i) {
      // With integer products, P may be rounded to another integer, because the backend that skips knew the
      // maximum from the start.
      ASSERT_NEAR(actual[1][i], expected[1][i], plain.plan().recipe.products == Products::real ? 1e-5 : 0.05);
    }
  }
  for (const SkipCount& count : backend->skip_counts()) {
    // 2 KV heads see each pair of a query and a token at or before the query.
    EXPECT_EQ(count.seen, 2 * 402 * 403 / 2);
    EXPECT_EQ(count.queries, 2 * 402);
    EXPECT_EQ(count.skipped, 0);
    EXPECT_EQ(count.mass, 0);
  }
}

// Holds K and V of tokens [0, n) as the only query of a decode step finds them.
struct Found {
  std::vector<float> k, v;
};
Found found_by_decoding(const Plan& plan, int kv_head, int n) {
  Found found;
  for (const Side side : kSides) {
    const SidePlan& stored = plan.head(0, kv_head).side(side);
    std::vector<float>& rows = side == Side::key ? found.k : found.v;
    for (int t = 0; t < n; ++t) {
      const auto row = values_of(0, kv_head, static_cast<int>(side), t);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    stored.transform.forward({rows.data(), n, kSize});
    for (float& x : rows) x = testing::rounded_to_bf16(x);
    for (int page = 0; (page + 1) * kPageTokens + plan.layers[0].window <= n - 1; ++page) {
      float* values = &rows[page * kPageTokens * kSize];
      const std::vector<float> exact(values, values + kPageTokens * kSize);
      TokenMask mask;
      for (int t = 0; page == 0 && t < plan.layers[0].sink; ++t) mask.set(t);
      std::vector<std::byte> bytes(stored.sealed->page_bytes(kSize));
      stored.sealed->encode(values, mask, stored.context, bytes.data());
      stored.sealed->decode(bytes.data(), kPageTokens, stored.context, values);
      if (page == 0) std::copy_n(exact.begin(), plan.layers[0].sink * kSize, values);
    }
    stored.transform.inverse({rows.data(), n, kSize});
  }
  return found;
}

TEST(SkipRule, DropsWhatWeighsLessThanTauForEveryHeadOfTheGroup) {
  constexpr int kTokens = 500;
  constexpr double kTau = 1e-3;
  const Geometry g = small_geometry(kSize, 6, 2, 1);
  for (const char* recipe :
       {"bf16", "k=ch4g128,v=tok4g128,sink=4,window=128", "k=tok8g32s,v=rhadamard:lm3"}) {
    const auto plan = plan_for(with_skip(recipe, "1e-3"), g);
    Cache cache(plan, 0);
    const SequenceId s = cache.add();
    attend_tokens(cache, s, kTokens - 1, true, values_of);
    const auto backend = make_reference_backend();
    const auto out = attend_tokens(cache, s, 1, false, values_of, *backend)[0];
    std::int64_t skipped = 0;
    int near = 0;
    double mass = 0;
    for (int kv = 0; kv < g.n_kv_heads; ++kv) {
      const Found found = found_by_decoding(*plan, kv, kTokens);
      std::vector<std::vector<double>> weights;
      for (int head = kv * g.group(0); head < (kv + 1) * g.group(0); ++head) {
        const auto q = values_of(0, head, kQueryRows, kTokens - 1);
        std::vector<double> scores(kTokens);
        for (int t = 0; t < kTokens; ++t) {
          scores[t] = testing::dot(q.data(), &found.k[t * kSize], kSize) * g.softmax_scale;
        }
        weights.push_back(testing::softmax_in_double(scores));
      }
      std::vector<bool> dropped(kTokens);
      for (int t = 0; t < kTokens; ++t) {
        double largest = 0, sum = 0;
        for (const auto& w : weights) {
          largest = std::max(largest, w[t]);
          sum += w[t];
        }
        near += std::abs(largest / kTau - 1) < 1e-3 ? 1 : 0;
        dropped[t] = largest < kTau;
        skipped += dropped[t] ? 1 : 0;
        mass += dropped[t] ? sum / g.group(0) : 0;
      }
      for (int i = 0; i < g.group(0); ++i) {
        std::vector<double> expected(kSize, 0.0);
        for (int t = 0; t < kTokens; ++t) {
          for (int c = 0; c < kSize && !dropped[t]; ++c)
            expected[c] += weights[i][t] * found.v[t * kSize + c];
        }
        const float* actual = testing::output_row(out, g, kTokens - 1, kTokens - 1, kv * g.group(0) + i);
        for (int c = 0; c < kSize; ++c) ASSERT_NEAR(actual[c], expected[c], 5e-4) << recipe;
      }
    }
    ASSERT_EQ(near, 0) << "choose other values";
    const SkipCount count = backend->skip_counts()[0];
    EXPECT_EQ(count.seen, g.n_kv_heads * kTokens) << recipe;
    EXPECT_EQ(count.queries, g.n_kv_heads) << recipe;
    EXPECT_EQ(count.skipped, skipped) << recipe;
    EXPECT_GT(skipped, kTokens / 2) << recipe;
    EXPECT_NEAR(count.mass, mass, 1e-3 * mass) << recipe;
  }
}

TEST(SkipRule, CountsTokensInsideASlidingWindowOnly) {
  Geometry g = small_geometry(kSize, 2, 1, 1);
  g.sliding_window = {150};
  Cache cache(plan_for("k=ch4g128,v=tok4g128,skip=1e-4", g), 0);
  const SequenceId s = cache.add();
  attend_tokens(cache, s, 400, true, values_of);
  const auto backend = make_reference_backend();
  attend_tokens(cache, s, 1, false, values_of, *backend);
  EXPECT_EQ(backend->skip_counts()[0].seen, 150);
}

TEST(SkippedMass, BoundsTheErrorOfTheOutput) {
  constexpr int kTokens = 450;
  const Geometry g = small_geometry(kSize, 4, 2, 1);
  for (const char* tau : {"1e-6", "1e-4", "1e-2"}) {
    const std::string recipe = "k=ch4g128,v=tok4g128";
    Cache plain(plan_for(recipe, g), 0), skipping(plan_for(with_skip(recipe, tau), g), 0);
    const SequenceId a = plain.add(), b = skipping.add();
    attend_tokens(plain, a, kTokens, true, values_of);
    attend_tokens(skipping, b, kTokens, true, values_of);
    const auto backend = make_reference_backend();
    const auto exact = attend_tokens(plain, a, 1, false, values_of)[0];
    const auto out = attend_tokens(skipping, b, 1, false, values_of, *backend)[0];
    // Holds the norm of the largest decoded V.
    double norm = 0;
    for (int kv = 0; kv < g.n_kv_heads; ++kv) {
      const Found found = found_by_decoding(plain.plan(), kv, kTokens + 1);
      for (int t = 0; t <= kTokens; ++t) {
        const float* row = &found.v[t * kSize];
        norm = std::max(norm, std::sqrt(testing::dot(row, row, kSize)));
      }
    }
    // The error is summed over heads, as the skipped mass is.
    double error = 0;
    for (int h = 0; h < g.n_heads; ++h) {
      double square = 0;
      for (int c = 0; c < kSize; ++c) square += std::pow(out[h * kSize + c] - exact[h * kSize + c], 2);
      error += std::sqrt(square);
    }
    const SkipCount count = backend->skip_counts()[0];
    const double mass = count.mass * g.group(0);
    EXPECT_LE(error, mass * norm + 1e-4) << tau;
    EXPECT_LE(mass, count.skipped * std::stod(tau) * g.group(0)) << tau;
    EXPECT_GT(count.skipped, 0) << tau;
  }
}

}  // namespace
}  // namespace kvant::skip_test
