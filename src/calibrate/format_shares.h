// Combines the sensitivities of a place to the formats of a ladder. A place is a (layer, KV head, side).
// While errors are small, a place has the same share of the cost in every format. Averaging over formats
// therefore reduces the noise of single estimates.
#pragma once

#include "base/geometry.h"
#include "calibrate/sensitivity_estimate.h"
#include "recipe/recipe.h"

namespace kvant {

// Returns smoothed sensitivities. Each estimate depends on a few positions of the contexts, where the errors
// of formats differ. The estimates of a place therefore scatter, and an allocation would exploit the
// estimates that are too low by chance. While errors are small, though, a place has the same share of its
// side's sum in every format. Among the formats of at least 2 bits, each place gets the geometric mean of its
// shares. The sum over all places of a side stays the same for each format. Below 2 bits, errors are not
// small and layers differ. There, the sum of each layer's side is kept, and divided among its heads by these
// shares.
Sensitivities shared_over_formats(const Sensitivities& sensitivities, const Geometry& geometry,
                                  const Recipe& recipe);

}  // namespace kvant
