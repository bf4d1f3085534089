#include "model/query_key_balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvant {
namespace {

std::vector<float> random_weights(int n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> octaves(0, 2);
  std::vector<float> weights(n);
  for (float& w : weights) w = std::exp2(octaves(random));
  return weights;
}

// Returns the factors by which balance_norms multiplied the keys. balance_norms must have divided the queries
// by the same factors.
std::vector<float> factors_of(std::vector<float> queries, std::vector<float> keys, int d,
                              const TurnedPairs& pairs) {
  const std::vector<float> old_queries = queries, old_keys = keys;
  balance_norms(queries, keys, d, pairs);
  std::vector<float> factors(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    factors[i] = keys[i] / old_keys[i];
    EXPECT_EQ(old_queries[i % queries.size()] / queries[i % queries.size()], factors[i]);
  }
  return factors;
}

TEST(BalancedNorms, MultiplyChannelsByPowersOfTwo) {
  for (const float f : factors_of(random_weights(64, 1), random_weights(64, 2), 64, {64, true})) {
    int octaves = 0;
    EXPECT_EQ(std::frexp(f, &octaves), 0.5F);
  }
}

TEST(BalancedNorms, HaveKeysAndQueriesOfLikeSizeInEachChannel) {
  std::vector<float> queries = random_weights(64, 1), keys = random_weights(64, 2);
  balance_norms(queries, keys, 64, {});
  for (int i = 0; i < 64; ++i) {
    EXPECT_LE(keys[i] / queries[i], 2.01F) << i;
    EXPECT_GE(keys[i] / queries[i], 0.49F) << i;
  }
}

TEST(BalancedNorms, MultiplyChannelsThatTurnTogetherAlike) {
  const std::vector<float> queries = random_weights(16, 1), keys = random_weights(16, 2);
  const std::vector<float> neox = factors_of(queries, keys, 16, {8, true});
  const std::vector<float> neighbours = factors_of(queries, keys, 16, {8, false});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(neox[i], neox[i + 4]);
  for (int i = 0; i < 8; i += 2) EXPECT_EQ(neighbours[i], neighbours[i + 1]);
}

TEST(BalancedNorms, OfSeveralHeadsGoByTheHeadsThatBelongTogether) {
  std::vector<float> queries(4 * 8, 1.0F), keys(2 * 8, 1.0F);
  for (int i = 0; i < 8; ++i) keys[8 + i] = 16;  // only the second KV head is larger
  balance_norms(queries, keys, 8, {});
  EXPECT_EQ(queries[2 * 8 - 1], 1);
  EXPECT_EQ(queries[2 * 8], 4);
  EXPECT_EQ(keys[0], 1);
  EXPECT_EQ(keys[8], 4);
}

TEST(BalancedNorms, LeaveChannelsThatAreZero) {
  std::vector<float> queries = {1, 1, 0, 0}, keys = {0, 4, 2, 0};
  balance_norms(queries, keys, 4, {});
  EXPECT_EQ(queries, (std::vector<float>{1, 2, 0, 0}));
  EXPECT_EQ(keys, (std::vector<float>{0, 2, 2, 0}));
}

}  // namespace
}  // namespace kvant
