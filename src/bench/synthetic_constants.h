// Constants for benchmarks without a model.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Stand-in constants, but with random codebooks: if all centroids were equal, so would be all codes, and a
// kernel would look up one and the same entry of its tables, which is faster than what it meets in a model.
std::shared_ptr<const Constants> synthetic_constants(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
