#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace kvant {
namespace {

const std::vector<float> kLogits = {std::log(0.1F), std::log(0.5F), std::log(0.05F), std::log(0.3F),
                                    std::log(0.05F)};

std::vector<double> frequencies(const SamplerOptions& options, int n) {
  auto sampler = Sampler::make(options).value();
  std::vector<double> share(kLogits.size());
  for (int i = 0; i < n; ++i) share[sampler->pick(kLogits)] += 1.0 / n;
  return share;
}

TEST(Sampler, TakesTheMostLikelyTokenAtTemperatureZero) {
  EXPECT_NEAR(frequencies({.temperature = 0}, 20)[1], 1.0, 1e-12);
  EXPECT_NEAR(frequencies({.temperature = 1e-44F}, 20)[1], 1.0, 1e-12);
}

TEST(Sampler, DrawsInProportionAtTemperatureOne) {
  const auto share = frequencies({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5}, 20000);
  const double expected[] = {0.1, 0.5, 0.05, 0.3, 0.05};
  for (std::size_t i = 0; i < share.size(); ++i) EXPECT_NEAR(share[i], expected[i], 0.02) << i;
}

TEST(Sampler, SharpensAtLowTemperatures) {
  // The normalized square of the probability is 0.25 / (0.01 + 0.25 + 0.0025 + 0.09 + 0.0025).
  const auto share = frequencies({.temperature = 0.5F, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5}, 20000);
  EXPECT_NEAR(share[1], 0.704, 0.02);
}

TEST(Sampler, CutsTheTail) {
  const auto kept = [](const SamplerOptions& options) {
    const auto share = frequencies(options, 2000);
    std::set<std::size_t> tokens;
    for (std::size_t i = 0; i < share.size(); ++i) {
      if (share[i] > 0) tokens.insert(i);
    }
    return tokens;
  };
  using Tokens = std::set<std::size_t>;
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2, .top_p = 1, .min_p = 0}), (Tokens{1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 0, .top_p = 0.85F, .min_p = 0}), (Tokens{0, 1, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0.5F}), (Tokens{1, 3}));
}

TEST(Sampler, RepeatsItselfWithTheSameSeed) {
  const auto draw = [](std::uint32_t seed) {
    auto sampler = Sampler::make({.temperature = 1, .seed = seed}).value();
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(sampler->pick(kLogits));
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Sampler, RefusesValuesOutOfRange) {
  const SamplerOptions bad[] = {{.temperature = -1}, {.temperature = NAN}, {.top_k = -1}, {.top_p = 0},
                                {.top_p = 1.1F},     {.min_p = -0.1F},     {.min_p = 2}};
  for (const SamplerOptions& options : bad) EXPECT_FALSE(Sampler::make(options).ok());
}

// The expected probabilities come from a softmax of the changed logits, which the test computes itself.
TEST(Sampler, DrawsWithBiasAndPenalties) {
  SamplerOptions options{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5};
  options.bias = {{1, -0.5F}, {3, -INFINITY}, {1, -0.25F}};
  options.penalties = {.presence = 0.7F, .frequency = 0.2F, .repeat = 1.5F, .repeat_last_n = 3};
  auto sampler = Sampler::make(options).value();
  sampler->begin(std::vector<std::int32_t>{2, 4});
  for (const int token : {0, 0}) sampler->accept(token);  // the last three tokens are 4, 0, 0
  std::vector<double> expected(kLogits.begin(), kLogits.end());
  expected[0] = expected[0] * 1.5 - 0.7 - 2 * 0.2;  // all logits are negative
  expected[4] *= 1.5;
  expected[1] -= 0.75;
  double sum = 0;
  for (double& p : expected) sum += p = std::exp(p);
  sum -= expected[3];
  expected[3] = 0;
  std::vector<double> share(kLogits.size());
  for (int i = 0; i < 20000; ++i) share[sampler->pick(kLogits)] += 1.0 / 20000;
  for (std::size_t i = 0; i < share.size(); ++i) EXPECT_NEAR(share[i], expected[i] / sum, 0.02) << i;
}

TEST(Sampler, GreedyDecodingHasBiasAndPenaltiesToo) {
  SamplerOptions options{.temperature = 0};
  options.penalties.presence = 1;
  auto sampler = Sampler::make(options).value();
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 3; ++i) {
    tokens.push_back(sampler->pick(kLogits));
    sampler->accept(tokens.back());
  }
  // The logits become log .5 - 1, log .3 and log .1. The first is below the second, but above the third and
  // above log .3 - 1.
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{1, 3, 1}));
  options = {.temperature = 0};
  options.bias = {{2, 100}};
  EXPECT_EQ(Sampler::make(options).value()->pick(kLogits), 2);
  for (int t = 0; t < 5; ++t) options.bias.push_back({t, -INFINITY});
  EXPECT_EQ(Sampler::make(options).value()->pick(kLogits), 1);  // biases that forbid all tokens are ignored
}

TEST(Sampler, CutsByTypicalityAndDeviation) {
  const auto kept = [](const SamplerOptions& options) {
    const auto share = frequencies(options, 2000);
    std::set<std::size_t> tokens;
    for (std::size_t i = 0; i < share.size(); ++i) {
      if (share[i] > 0) tokens.insert(i);
    }
    return tokens;
  };
  using Tokens = std::set<std::size_t>;
  SamplerOptions options{.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
  // The entropy is 1.24. The nearest surprise is -log .3 (1.20), then come -log .5 (.69) and -log .1 (2.30).
  options.typical_p = 0.5F;
  EXPECT_EQ(kept(options), (Tokens{1, 3}));
  options.typical_p = 0.2F;
  EXPECT_EQ(kept(options), (Tokens{3}));
  options.typical_p = 1;
  options.top_n_sigma = 1;  // the standard deviation of the logits is .94
  EXPECT_EQ(kept(options), (Tokens{1, 3}));
  options.top_n_sigma = 0;
  options.xtc_probability = 1;  // only the last of the probabilities .5, .3 and .1 remains
  options.xtc_threshold = 0.08F;
  EXPECT_EQ(kept(options), (Tokens{0, 2, 4}));
}

}  // namespace
}  // namespace kvant
