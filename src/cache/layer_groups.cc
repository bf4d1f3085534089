#include "cache/layer_groups.h"

#include <algorithm>
#include <numeric>

namespace kvant {

std::vector<LayersOfEntry> layer_groups(const Plan& plan) {
  std::vector<LayersOfEntry> groups;
  if (plan.device != nullptr) {
    groups.emplace_back().layers.resize(plan.geometry.n_layers);
    std::iota(groups.front().layers.begin(), groups.front().layers.end(), 0);
    return groups;
  }
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const LayerPlan& of_layer = plan.layers[layer];
    const GroupRules rules{.window = of_layer.window,
                           .sliding_window = of_layer.sliding_window,
                           .prefill = plan.recipe.prefill,
                           .tail_lasts = plan.geometry.is_shared(layer)};
    auto found = std::ranges::find(groups, rules, &LayersOfEntry::rules);
    if (found == groups.end()) found = groups.insert(found, {rules, {}});
    found->layers.push_back(layer);
  }
  return groups;
}

}  // namespace kvant
