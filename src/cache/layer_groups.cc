#include "cache/layer_groups.h"

#include <algorithm>

namespace kvant {

std::vector<LayersOfEntry> layer_groups(const Plan& plan) {
  std::vector<LayersOfEntry> groups;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    const LayerPlan& of_layer = plan.layers[layer];
    const GroupRules rules{.window = of_layer.window,
                           .sliding_window = of_layer.sliding_window,
                           .prefill = plan.recipe.prefill,
                           .tail_lasts = plan.geometry.is_shared(layer)};
    auto found = std::ranges::find_if(groups, [&](const LayersOfEntry& group) {
      return group.rules == rules && plan.geometry.heads_are_alike(group.layers.front(), layer);
    });
    if (found == groups.end()) found = groups.insert(found, {rules, {}});
    found->layers.push_back(layer);
  }
  return groups;
}

}  // namespace kvant
