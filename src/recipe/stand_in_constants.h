// Constants that replace calibrated ones where only shapes and sizes matter.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns everything that `recipe` needs on a model of this geometry, in the right sizes, with harmless
// values: transforms are identities, codebooks and adapters are constant. It suits plans whose bytes are
// computed, not attention. Overrides must lie within the geometry.
std::shared_ptr<const Constants> stand_in_constants(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
