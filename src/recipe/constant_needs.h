// The constants that a recipe needs from calibration, as data. resolve() checks a model's constants against
// this list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "format/format.h"
#include "recipe/recipe.h"
#include "transform/transform.h"

namespace kvant {

enum class NeedKind : std::uint8_t {
  transform,    // for the transform step `step`
  format,       // for the format of quantized pages `format`
  tail,         // for the format of unquantized tokens `format`
  priority,     // of the head, for the head mix; K's constant covers both sides
  adapter,      // for KVLinC's correction, on K
  metric,       // of the head's queries, for formats of K that shape their errors
  sensitivity,  // to the ladder's formats, for the bit allocation
};

// Whether a recipe works without this constant, though less well. Without sensitivities the budget buys the
// same format everywhere (bit_allocation.h). Without a metric all errors count alike.
constexpr bool is_optional(NeedKind kind) {
  return kind == NeedKind::sensitivity || kind == NeedKind::metric;
}

// Describes one array of Constants.
struct ConstantNeed {
  NeedKind kind = NeedKind::transform;
  std::string name;                // its name in Constants
  std::size_t size = 0;            // numbers
  std::vector<std::string> after;  // the transform steps that K or V has passed where this is measured
  const TransformKind* step = nullptr;
  const Format* format = nullptr;
  bool operator==(const ConstantNeed&) const = default;
};

// The number D of features of the correction's maps phi(x) = [softmax(x W1), softmax(x W2)] in R^D.
// "adapter/q" holds [G][2][d][D / 2], which is W1 and W2 of every query head of the group; "adapter/k" holds
// [2][d][D / 2].
inline constexpr int kAdapterFeatures = 256;
inline constexpr const char* kQueryAdapter = "adapter/q";
inline constexpr const char* kKeyAdapter = "adapter/k";

// Whether the recipe's correction applies to the layer. It never applies to layers with a sliding window,
// because its sums would remember what they forget.
bool corrects(const Recipe& recipe, const Geometry& geometry, int layer);
// Calibration switches the correction off for heads that it does not help; each of their adapters is a single
// 0.
inline bool switched_off(std::span<const float> adapter) {
  return adapter.size() == 1;
}

// Returns the needs of one (layer, KV head, side), in an order in which each can be measured once the earlier
// ones exist. Most recipes have none. If the head mix may give the head either of two formats, both are
// listed. Layer and head must exist in the geometry, and the recipe's names must be known.
std::vector<ConstantNeed> constant_needs(const Recipe& recipe, const Geometry& geometry, int layer,
                                         int kv_head, Side side);

}  // namespace kvant
