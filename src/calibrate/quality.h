// Measures how well a plan preserves captured K and V, and the attention outputs. A calibration's file
// contains these errors for each recipe.
#pragma once

#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "recipe/plan.h"

namespace kvant {

// Returns the errors on the capture's passages. All whole pages of the passages are sealed in the plan's
// formats, except for the sink's tokens. Attention outputs belong to the last tokens of these pages. The
// function runs on n_threads threads.
RecipeQuality measure_quality(const Capture& capture, const Plan& plan, int n_threads);

// Measures a recipe with constants that have scoped names. Returns an error for a missing constant, and the
// errors of resolve().
Result<RecipeQuality> quality_of(const Recipe& recipe, const Constants& constants, const Capture& capture,
                                 int n_threads);

}  // namespace kvant
