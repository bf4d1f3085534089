#include "model/query_key_balance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace kvant {
namespace {

// Factors are at least 2^-kMostOctaves and at most 2^kMostOctaves, so F16 can hold the scaled rows.
constexpr double kMostOctaves = 8;

int partner_of(int channel, const TurnedPairs& pairs) {
  if (channel >= pairs.n_channels) return channel;
  const int half = pairs.n_channels / 2;
  if (pairs.neox) return channel < half ? channel + half : channel - half;
  return channel ^ 1;
}

// Returns the sum of squares of a channel and its partner over some heads, divided by the number of weights.
double energy(std::span<const float> weights, int d, int channel, int partner) {
  double sum = 0;
  for (std::size_t head = 0; head < weights.size(); head += d)
    for (const int c : {channel, partner}) sum += std::pow(static_cast<double>(weights[head + c]), 2);
  return sum / static_cast<double>(weights.size());
}

void balance_heads(std::span<float> queries, std::span<float> keys, int d, const TurnedPairs& pairs) {
  std::vector<float> factors(d, 1.0F);
  for (int i = 0; i < d; ++i) {
    const int partner = partner_of(i, pairs);
    const double ratio = energy(queries, d, i, partner) / energy(keys, d, i, partner);
    if (!(ratio > 0) || !std::isfinite(ratio)) continue;
    const double octaves = std::clamp(std::log2(ratio) / 4, -kMostOctaves, kMostOctaves);
    factors[i] = static_cast<float>(std::exp2(std::nearbyint(octaves)));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] *= factors[i % d];
  for (std::size_t i = 0; i < queries.size(); ++i) queries[i] /= factors[i % d];
}

}  // namespace

void balance_norms(std::span<float> queries, std::span<float> keys, int d, const TurnedPairs& pairs) {
  const std::size_t n_groups = std::min(queries.size(), keys.size()) / d;
  KVANT_CHECK(n_groups > 0 && queries.size() % (n_groups * d) == 0 && keys.size() % (n_groups * d) == 0,
              "norms of numbers of heads that don't fit");
  const std::size_t n_queries = queries.size() / n_groups, n_keys = keys.size() / n_groups;
  for (std::size_t group = 0; group < n_groups; ++group)
    balance_heads(queries.subspan(group * n_queries, n_queries), keys.subspan(group * n_keys, n_keys), d,
                  pairs);
}

}  // namespace kvant
