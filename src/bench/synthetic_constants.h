// Constants for benchmarks without a model.
#pragma once

#include <memory>

#include "base/geometry.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Stand-in constants, but with random codebooks. With equal centroids all codes would be equal, and a kernel
// would look up the same table entry again and again, which is faster than real data.
std::shared_ptr<const Constants> synthetic_constants(const Recipe& recipe, const Geometry& geometry);

}  // namespace kvant
