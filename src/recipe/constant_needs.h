// What a recipe needs from calibration, as data: resolve checks a model's constants against this list.
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
  transform,    // of the step `step`
  format,       // of the format of sealed pages `format`
  tail,         // of the format of unsealed tokens `format`
  priority,     // of the head, for the head mix; K's stands for both sides
  adapter,      // of KVLinC's correction, on K
  metric,       // of the head's queries, for the formats of K that shape their errors
  sensitivity,  // of the ladder's formats, for the bit allocation
};

// Whether a recipe works without it, if not as well: where nothing has weighed the ladder's formats, the
// budget buys the same format everywhere (bit_allocation.h); without a metric all errors count alike.
constexpr bool is_optional(NeedKind kind) {
  return kind == NeedKind::sensitivity || kind == NeedKind::metric;
}

// One array of Constants.
struct ConstantNeed {
  NeedKind kind = NeedKind::transform;
  std::string name;                // what Constants calls it
  std::size_t size = 0;            // numbers
  std::vector<std::string> after;  // the steps that K or V has gone through where this is measured
  const TransformKind* step = nullptr;
  const Format* format = nullptr;
  bool operator==(const ConstantNeed&) const = default;
};

// Features D of the correction's maps phi(x) = [softmax(x W1), softmax(x W2)] in R^D. "adapter/q" holds
// [G][2][d][D / 2]: W1 and W2 of every query head of the group; "adapter/k" holds [2][d][D / 2].
inline constexpr int kAdapterFeatures = 256;
inline constexpr const char* kQueryAdapter = "adapter/q";
inline constexpr const char* kKeyAdapter = "adapter/k";

// Whether the recipe's correction is for the layer. Layers with a sliding window have none: its sums would
// remember what they forget.
bool corrects(const Recipe& recipe, const Geometry& geometry, int layer);
// Where a correction doesn't help a head, calibration switches it off: each adapter then is a single 0.
inline bool switched_off(std::span<const float> adapter) {
  return adapter.size() == 1;
}

// The needs of one (layer, KV head, side), in an order in which each can be measured once those before it are
// there; none for most recipes. Where the head mix may give the head either of two formats, both are listed.
// Layer and head must be the geometry's, and the recipe's names known.
std::vector<ConstantNeed> constant_needs(const Recipe& recipe, const Geometry& geometry, int layer,
                                         int kv_head, Side side);

}  // namespace kvant
