// Measures how well a plan preserves captured K and V, and the attention outputs.
#pragma once

#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "recipe/plan.h"

namespace kvant {

// Returns the errors on the capture's passages with all their whole pages sealed in the plan's formats,
// without the sink. Attention outputs are those of the last tokens of these pages. Fields are 0 if passages
// have no whole page. Runs on n_threads threads.
RecipeQuality measure_quality(const Capture& capture, const Plan& plan, int n_threads);

// Measures a recipe with constants by scoped name. Errors: a missing constant; see resolve().
Result<RecipeQuality> quality_of(const Recipe& recipe, const Constants& constants, const Capture& capture,
                                 int n_threads);

}  // namespace kvant
