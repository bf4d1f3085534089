#include "recipe/stand_in_constants.h"

#include <cmath>
#include <vector>

#include "format/format.h"
#include "format/page_metric.h"
#include "recipe/constant_needs.h"

namespace kvant {
namespace {

// In every place, each bit divides the sensitivity by four, so the allocation spends the whole budget.
std::vector<float> equal_sensitivities(const Recipe& recipe, int head_dim) {
  std::vector<float> sensitivities;
  for (const std::string& name : recipe.ladder)
    sensitivities.push_back(static_cast<float>(std::exp2(-2 * find_format(name)->bits(head_dim))));
  return sensitivities;
}

std::vector<float> harmless_values(const Recipe& recipe, const ConstantNeed& need, int head_dim) {
  if (need.kind == NeedKind::sensitivity) return equal_sensitivities(recipe, head_dim);
  // If the metric is zero, all errors count alike.
  if (need.name == kPageMetric) return std::vector<float>(need.size, 0.0F);
  const auto d = static_cast<std::size_t>(head_dim);
  const bool matrix = need.kind == NeedKind::transform && need.size == d * d;
  std::vector<float> values(need.size, matrix ? 0.0F : 1.0F);
  for (std::size_t i = 0; matrix && i < d; ++i) values[i * d + i] = 1.0F;
  return values;
}

}  // namespace

std::shared_ptr<const Constants> stand_in_constants(const Recipe& recipe, const Geometry& geometry) {
  auto constants = std::make_shared<Constants>();
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      for (Side side : kSides) {
        for (const ConstantNeed& need : constant_needs(recipe, geometry, layer, head, side)) {
          constants->set(layer, head, side, need.name, harmless_values(recipe, need, geometry.dim(layer)));
        }
      }
    }
  }
  return constants;
}

}  // namespace kvant
