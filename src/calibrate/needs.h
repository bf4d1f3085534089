// Needs: what calibration must learn for recipes, and under which names it is stored.
//
// A constant depends on what it is learned on: the transforms before it, and whether the recipe has a sink
// (then the first tokens of a sequence are left out, else they count). One file may serve many recipes, so a
// constant is stored under a scoped name: "smooth+hadamard:codebook/vq-d4b8", with "nosink/" in front for
// recipes without a sink.
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

// One constant, with what else it depends on.
struct ScopedNeed {
  ConstantNeed need;
  std::string stored;  // the scoped name
  // Adapters only: K's format, whose errors they correct, and the scale of the correction.
  const Format* corrected = nullptr;
  Correction correction = Correction::none;
};

// What is to be learned on the values of one (layer, KV head, side), as one chain of transforms leaves them.
struct HeadNeeds {
  int layer = 0;
  int kv_head = 0;
  Side side = Side::key;
  bool without_sink = false;            // the recipe protects the first tokens: learn without them
  std::vector<std::string> transforms;  // in the order in which they are applied
  std::vector<ScopedNeed> constants;    // each can be learned once those before it are there
};

// What the recipes need on a model, in the order of layers, heads and sides. Needs of the same values are
// merged; heads that need nothing are left out.
std::vector<HeadNeeds> needs_of(std::span<const Recipe> recipes, const Geometry& geometry);

// Under which name the sensitivities of the recipe's ladder are stored for one head's side. The recipe has a
// budget.
std::string stored_sensitivity(const Recipe& recipe, const Geometry& geometry, int layer, int kv_head,
                               Side side);

// Whether calibration has anything to learn for the recipe.
bool needs_calibration(const Recipe& recipe, const Geometry& geometry);
// Whether the recipe can't be used without that: it has constants for which nothing stands in.
bool requires_calibration(const Recipe& recipe, const Geometry& geometry);

// The constants of `stored` (by scoped name) that `recipe` needs, by the names that resolve() looks for. An
// error names the first that is missing.
Result<Constants> constants_for(const Recipe& recipe, const Geometry& geometry, const Constants& stored);

}  // namespace kvant
