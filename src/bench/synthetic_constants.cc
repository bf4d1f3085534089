#include "bench/synthetic_constants.h"

#include <cmath>
#include <random>
#include <vector>

#include "recipe/constant_needs.h"
#include "recipe/stand_in_constants.h"

namespace kvant {
namespace {

constexpr std::uint64_t kCodebookSeed = 1;

// Draws centroids from the distribution of the values that are quantized. The variance is 1, or 1 / head_dim
// for unit vectors.
std::vector<float> random_codebook(const ConstantNeed& need, const CodebookShape& shape, int head_dim,
                                   std::mt19937_64& random) {
  const float spread = shape.unit_vectors ? 1.0F / std::sqrt(static_cast<float>(head_dim)) : 1.0F;
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> centroids(need.size);
  for (float& x : centroids) x = normal(random);
  return centroids;
}

}  // namespace

std::shared_ptr<const Constants> synthetic_constants(const Recipe& recipe, const Geometry& geometry) {
  auto constants = std::make_shared<Constants>(*stand_in_constants(recipe, geometry));
  std::mt19937_64 random(kCodebookSeed);
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads(layer); ++head) {
      for (const Side side : kSides) {
        for (const ConstantNeed& need : constant_needs(recipe, geometry, layer, head, side)) {
          const auto shape = need.kind == NeedKind::format ? need.format->codebook_shape() : std::nullopt;
          if (!shape.has_value()) continue;
          constants->set(layer, head, side, need.name,
                         random_codebook(need, *shape, geometry.dim(layer), random));
        }
      }
    }
  }
  return constants;
}

}  // namespace kvant
