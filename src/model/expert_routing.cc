#include "model/expert_routing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvant {
namespace {

// A smaller sum of weights is raised to this value before the division. llama.cpp uses the same guard, the
// smallest normal F16.
constexpr float kSmallestSum = 6.103515625e-5F;

void softmax(std::span<float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& v : x) sum += v = std::exp(v - max);
  for (float& v : x) v /= sum;
}

// Finds the indices of the n largest values, the largest first. The first of several equal values wins.
void find_largest(std::span<const float> values, int n, std::int32_t* indices) {
  std::array<std::int32_t, kMaxExperts> order;
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(values.size());
  std::iota(order.begin(), end, 0);
  std::partial_sort(order.begin(), order.begin() + n, end,
                    [&](int a, int b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  std::copy_n(order.begin(), n, indices);
}

// Sets the scores of experts outside of the best groups to -infinity.
void leave_best_groups(const Experts& rules, std::span<float> scores) {
  const std::size_t size = scores.size() / rules.n_groups;
  std::array<float, kMaxExperts> of_group;
  for (int g = 0; g < rules.n_groups; ++g) {
    const std::span group = scores.subspan(g * size, size);
    std::int32_t best[2];
    const int n = std::min<int>(2, rules.n / rules.n_groups);
    find_largest(group, n, best);
    of_group[g] = n == 2 ? group[best[0]] + group[best[1]] : group[best[0]];
  }
  std::array<std::int32_t, kMaxExperts> order;
  find_largest({of_group.data(), static_cast<std::size_t>(rules.n_groups)}, rules.n_groups, order.data());
  for (int i = rules.n_groups_used; i < rules.n_groups; ++i) {
    const std::span left_out = scores.subspan(order[i] * size, size);
    std::fill(left_out.begin(), left_out.end(), -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

void choose_experts(const Experts& rules, std::span<float> logits, std::span<const float> choice_bias,
                    std::span<std::int32_t> ids, std::span<float> weights) {
  if (rules.gating == Gating::softmax) softmax(logits);
  if (rules.gating == Gating::sigmoid) {
    for (float& x : logits) x = 1 / (1 + std::exp(-x));
  }
  std::array<float, kMaxExperts> memory;
  const std::span scores(memory.data(), logits.size());
  std::copy(logits.begin(), logits.end(), scores.begin());
  for (std::size_t i = 0; i < choice_bias.size(); ++i) scores[i] += choice_bias[i];
  if (rules.n_groups > 1) leave_best_groups(rules, scores);
  find_largest(scores, rules.n_used, ids.data());
  for (int i = 0; i < rules.n_used; ++i) weights[i] = logits[ids[i]];
  if (rules.gating == Gating::softmax_of_chosen) softmax(weights);
  float scale = rules.scale;
  if (rules.normalizes)
    scale /= std::max(kSmallestSum, std::accumulate(weights.begin(), weights.end(), 0.0F));
  for (float& w : weights) w *= scale;
}

}  // namespace kvant
