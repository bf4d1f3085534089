// Lists the constants that calibration must learn for recipes, and the names under which they are stored.
//
// A constant depends on the values that it is learned from. The values depend on the transforms before the
// constant, and on the sink, whose tokens are left out. One file may serve many recipes, so a constant has a
// scoped name, such as "smooth+hadamard:codebook/vq-d4b8". For recipes without a sink, the name begins with
// "nosink/".
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

// ScopedNeed is a constant that a recipe needs, together with the facts on which the constant depends.
struct ScopedNeed {
  ConstantNeed need;
  std::string stored;  // the scoped name
  // `corrected` and `correction` apply only to adapters. `corrected` is the format of K whose errors the
  // adapters correct, and `correction` is the kind of correction.
  const Format* corrected = nullptr;
  Correction correction = Correction::none;
};

// HeadNeeds lists the constants to learn from the values of one (layer, KV head, side) after one chain of
// transforms.
struct HeadNeeds {
  int layer = 0;
  int kv_head = 0;
  Side side = Side::key;
  bool without_sink = false;            // the recipe protects the first tokens, so constants are learned
                                        // without them
  std::vector<std::string> transforms;  // names in the order in which the transforms are applied
  std::vector<ScopedNeed> constants;    // a constant depends only on constants before it
};

// Returns the constants that the recipes need for a model, in the order of layers, heads and sides. Needs
// that are learned from the same values are merged. Heads that need nothing are left out.
std::vector<HeadNeeds> needs_of(std::span<const Recipe> recipes, const Geometry& geometry);

// Returns the stored name of the sensitivities of the recipe's ladder, for one side of a head. The recipe
// must have a budget.
std::string stored_sensitivity(const Recipe& recipe, const Geometry& geometry, int layer, int kv_head,
                               Side side);

// Returns whether calibration has anything to learn for the recipe.
bool needs_calibration(const Recipe& recipe, const Geometry& geometry);
// Returns whether the recipe cannot be used without calibration, because some of its constants have no
// stand-in.
bool requires_calibration(const Recipe& recipe, const Geometry& geometry);

// Returns the constants that `recipe` needs from `stored`, whose names are scoped. The result has the names
// that resolve() looks up. An error names the first missing constant.
Result<Constants> constants_for(const Recipe& recipe, const Geometry& geometry, const Constants& stored);

}  // namespace kvant
