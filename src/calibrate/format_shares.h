// FormatShares: what several formats of a ladder say about a place, put together.
#pragma once

#include "base/geometry.h"
#include "calibrate/sensitivity_estimate.h"
#include "recipe/recipe.h"

namespace kvant {

// A few positions of the contexts make most of an estimate, and each format has errors of its own there: the
// estimates of a place scatter from format to format, and an allocation finds what is too low. But with small
// errors a place costs its share of a side's sum, whatever the format. So every place gets the geometric mean
// of its shares in the formats of at least 2 bits, and the sums of all places of a side stay as they are, for
// each of these formats. With fewer bits errors are not small, which differs from layer to layer: there the
// sums of a layer's side stay, and its heads get their shares of these.
Sensitivities shared_over_formats(const Sensitivities& sensitivities, const Geometry& geometry,
                                  const Recipe& recipe);

}  // namespace kvant
