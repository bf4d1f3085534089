#include "generate/token_probabilities.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvant {
namespace {

// Returns log(sum(exp(logits))). Subtracting the maximum first avoids overflow.
double log_sum(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

}  // namespace

double log_probability(std::span<const float> logits, std::int32_t token) {
  return logits[token] - log_sum(logits);
}

std::vector<TokenProbability> likeliest_tokens(std::span<const float> logits, int n) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<std::ptrdiff_t>(n, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  const double total = log_sum(logits);
  std::vector<TokenProbability> tokens;
  for (auto token = order.begin(); token != end; ++token) tokens.push_back({*token, logits[*token] - total});
  return tokens;
}

}  // namespace kvant
