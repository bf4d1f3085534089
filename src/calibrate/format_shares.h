// FormatShares: combines the estimates that several formats of a ladder give for a place.
#pragma once

#include "base/geometry.h"
#include "calibrate/sensitivity_estimate.h"
#include "recipe/recipe.h"

namespace kvant {

// A few positions of the contexts dominate each estimate, and the formats' errors differ there. So the
// estimates of a place scatter, and an allocation exploits those that are too low. But while errors are
// small, a place costs the same share of its side's sum in every format. So each place gets the geometric
// mean of its shares in the formats of at least 2 bits, and the sum over all places of a side is kept for
// each of these formats. With fewer bits errors are not small, and layers differ in this. There the sums of
// each layer's side are kept, and its heads get their shares of them.
Sensitivities shared_over_formats(const Sensitivities& sensitivities, const Geometry& geometry,
                                  const Recipe& recipe);

}  // namespace kvant
