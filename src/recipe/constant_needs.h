// Lists the constants that a recipe needs from calibration. Calibration measures what is on the list, and
// resolve() checks a model's constants against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/linear_correction.h"
#include "format/format.h"
#include "recipe/recipe.h"
#include "transform/transform.h"

namespace kvant {

enum class NeedKind : std::uint8_t {
  // Holds the parameters of the transform step ConstantNeed::step.
  transform,
  // Holds the parameters of the format of quantized pages, ConstantNeed::format.
  format,
  // Holds the parameters of the format of unquantized tokens, ConstantNeed::format.
  tail,
  // Holds the head's priority in the head mix. The constant of K serves both sides.
  priority,
  // Holds the feature maps of KVLinC's correction, stored for K.
  adapter,
  // Holds the metric of the head's queries, for formats of K that shape their errors.
  metric,
  // Holds the same metric, for the queries of a short text (encode=sampled).
  sampled_metric,
  // Holds the head's sensitivity to each format of the recipe's ladder (Recipe::ladder), for the bit
  // allocation.
  sensitivity,
};

// Returns whether a recipe also works without a constant of this kind, though less well. Without
// sensitivities, the budget buys one format everywhere (bit_allocation.h). Without a metric, all errors of K
// count alike.
constexpr bool is_optional(NeedKind kind) {
  return kind == NeedKind::sensitivity || kind == NeedKind::metric;
}

// Describes one array of Constants that a recipe needs.
struct ConstantNeed {
  NeedKind kind = NeedKind::transform;
  // Names the array in Constants.
  std::string name;
  std::size_t size = 0;  // number of F32 values
  // Calibration measures K or V after the transform steps in `after`.
  std::vector<std::string> after;
  const TransformKind* step = nullptr;
  const Format* format = nullptr;
  bool operator==(const ConstantNeed&) const = default;
};

// The maps phi(x) = [softmax(x W1), softmax(x W2)] of KVLinC's correction have D = kAdapterFeatures features.
// The constant "adapter/q" holds W1 and W2 of every query head of the group, [G][2][d][D / 2]. The constant
// "adapter/k" holds W1 and W2 of the KV head, [2][d][D / 2].
inline constexpr int kAdapterFeatures = kCorrectionFeatures;
inline constexpr const char* kQueryAdapter = "adapter/q";
inline constexpr const char* kKeyAdapter = "adapter/k";

// Returns whether the recipe's correction applies to the layer. Layers with a sliding window have no
// correction, because the correction's sums would still contain tokens that the layer has forgotten.
bool corrects(const Recipe& recipe, const Geometry& geometry, int layer);
// Calibration switches the correction off for heads that do not profit from it. The adapters of such a head
// are a single 0.
inline bool switched_off(std::span<const float> adapter) {
  return adapter.size() == 1;
}

// Returns the needs of one (layer, KV head, side). The order lets calibration measure each constant after the
// constants that it depends on. Most recipes have no needs. If the head mix may give the head either of two
// formats, the list has the needs of both. Layer and head must exist in the geometry, and the recipe's names
// must be known.
std::vector<ConstantNeed> constant_needs(const Recipe& recipe, const Geometry& geometry, int layer,
                                         int kv_head, Side side);

}  // namespace kvant
