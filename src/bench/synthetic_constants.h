// Makes constants for benchmarks without a model. Synthetic constants take the place of constants that
// calibration would make.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns stand-in constants, but with random codebooks. With equal centroids, all codes would be equal. A
// kernel would then look up the same table entry each time, which is faster than with real data.
std::shared_ptr<const Constants> synthetic_constants(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
