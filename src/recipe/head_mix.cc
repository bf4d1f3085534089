#include "recipe/head_mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "recipe/plan.h"
#include "transform/calibrated_constants.h"

namespace kvant {
namespace {

// Returns the number of mixed heads, rounded down. A decimal fraction such as 0.29 is slightly smaller in
// binary, so the function first adds a small number.
int n_mixed(double mix, int n_heads) {
  constexpr double kRounding = 1e-9;
  return static_cast<int>(std::floor(mix * n_heads + kRounding));
}

}  // namespace

std::span<const char* const> mix_metrics() {
  static constexpr const char* kMetrics[] = {"gap-std", "entropy", "min-max", "variation"};
  return kMetrics;
}

std::string head_priority_constant(const std::string& metric) {
  return "priority/" + metric;
}

Result<std::vector<bool>> mixed_heads(const Recipe& recipe, const Geometry& geometry,
                                      const Constants* constants, int layer) {
  const int n_heads = geometry.kv_heads(layer);
  std::vector<bool> mixed(n_heads, false);
  if (recipe.mix == 0) return mixed;
  std::vector<float> priorities;
  for (int head = 0; head < n_heads; ++head) {
    const auto priority = calibrated_constants(HeadConstants{constants, layer, head, Side::key},
                                               head_priority_constant(recipe.mix_metric), 1);
    if (!priority.ok()) return priority.error();
    priorities.push_back((*priority)[0]);
  }
  std::vector<int> order(n_heads);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return priorities[a] < priorities[b]; });
  for (int i = 0; i < n_mixed(recipe.mix, n_heads); ++i) mixed[order[i]] = true;
  return mixed;
}

SideRecipe mixed_side_of(const Recipe& recipe, Side side, int layer, int kv_head, bool mixed) {
  const SideRecipe& found = side_of(recipe, side, layer, kv_head);
  const bool overridden = &found != &recipe.k && &found != &recipe.v;
  const std::string& format = side == Side::key ? recipe.mix_k : recipe.mix_v;
  if (!mixed || overridden || format.empty()) return found;
  return SideRecipe{found.transforms, format};
}

}  // namespace kvant
