#include "model/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace kvant {
namespace {

// Sums below it count as it: llama.cpp's guard, the smallest normal F16.
constexpr float kSmallestSum = 6.103515625e-5F;

void softmax(std::span<float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& v : x) sum += v = std::exp(v - max);
  for (float& v : x) v /= sum;
}

// Experts outside the best groups can't be chosen.
void leave_best_groups(const Experts& rules, std::span<float> scores) {
  const std::size_t size = scores.size() / rules.n_groups;
  std::vector<float> best(rules.n_groups);
  for (int g = 0; g < rules.n_groups; ++g) {
    std::vector<float> group(scores.begin() + g * size, scores.begin() + (g + 1) * size);
    const std::size_t n = std::min<std::size_t>(2, size);
    std::partial_sort(group.begin(), group.begin() + n, group.end(), std::greater<>());
    best[g] = std::accumulate(group.begin(), group.begin() + n, 0.0F);
  }
  std::vector<int> order(rules.n_groups);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return best[a] > best[b]; });
  for (std::size_t i = rules.n_groups_used; i < order.size(); ++i) {
    const auto first = scores.begin() + order[i] * size;
    std::fill(first, first + size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void choose_experts(const Experts& rules, std::span<float> logits, std::span<const float> choice_bias,
                    std::span<std::int32_t> ids, std::span<float> weights) {
  if (rules.gating == Gating::softmax) softmax(logits);
  if (rules.gating == Gating::sigmoid) {
    for (float& x : logits) x = 1 / (1 + std::exp(-x));
  }
  std::vector<float> scores(logits.begin(), logits.end());
  for (std::size_t i = 0; i < choice_bias.size(); ++i) scores[i] += choice_bias[i];
  if (rules.n_groups > 1) leave_best_groups(rules, scores);
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + rules.n_used, order.end(),
                    [&](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  for (int i = 0; i < rules.n_used; ++i) {
    ids[i] = order[i];
    weights[i] = logits[order[i]];
  }
  if (rules.gating == Gating::softmax_of_chosen) softmax(weights);
  float scale = rules.scale;
  if (rules.normalizes)
    scale /= std::max(kSmallestSum, std::accumulate(weights.begin(), weights.end(), 0.0F));
  for (float& w : weights) w *= scale;
}

}  // namespace kvant
