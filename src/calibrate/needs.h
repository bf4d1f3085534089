// Needs: the constants that calibration must learn for recipes, and the names under which they are stored.
//
// A constant depends on its input: the transforms before it, and whether the recipe has a sink (then the
// first tokens of a sequence are left out). One file may serve many recipes, so a constant is stored under a
// scoped name: "smooth+hadamard:codebook/vq-d4b8", prefixed with "nosink/" for recipes without a sink.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "format/format.h"
#include "recipe/constant_needs.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// One constant with its dependencies.
struct ScopedNeed {
  ConstantNeed need;
  std::string stored;  // the scoped name
  // Only for adapters: K's format, whose errors they correct, and the scale of the correction.
  const Format* corrected = nullptr;
  Correction correction = Correction::none;
};

// The constants to learn on the values of one (layer, KV head, side) after one chain of transforms.
struct HeadNeeds {
  int layer = 0;
  int kv_head = 0;
  Side side = Side::key;
  bool without_sink = false;            // the recipe protects the first tokens: learn without them
  std::vector<std::string> transforms;  // in the order in which they are applied
  std::vector<ScopedNeed> constants;    // each depends only on earlier ones
};

// Returns what the recipes need of a model, in the order of layers, heads and sides. Needs on the same values
// are merged; heads that need nothing are left out.
std::vector<HeadNeeds> needs_of(std::span<const Recipe> recipes, const Geometry& geometry);

// Returns the stored name of the sensitivities of the recipe's ladder for one head's side. Requires a recipe
// with a budget.
std::string stored_sensitivity(const Recipe& recipe, const Geometry& geometry, int layer, int kv_head,
                               Side side);

// Whether calibration has anything to learn for the recipe.
bool needs_calibration(const Recipe& recipe, const Geometry& geometry);
// Whether the recipe can't be used without calibration: it has constants without stand-ins.
bool requires_calibration(const Recipe& recipe, const Geometry& geometry);

// Returns the constants of `stored` (by scoped name) that `recipe` needs, by the names that resolve() looks
// up. An error names the first missing one.
Result<Constants> constants_for(const Recipe& recipe, const Geometry& geometry, const Constants& stored);

}  // namespace kvant
