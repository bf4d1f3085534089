// How well a plan keeps captured K and V, and what attention makes of them.
#pragma once

#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "recipe/plan.h"

namespace kvant {

// Errors on the capture's passages when all their whole pages are sealed in the plan's formats, the sink left
// out. Attention outputs are those of the last tokens of these pages. Fields are 0 when passages have no
// whole page. Runs on n_threads threads.
RecipeQuality measure_quality(const Capture& capture, const Plan& plan, int n_threads);

// That of a recipe with the constants by scoped name. Errors: without what the recipe needs; see resolve().
Result<RecipeQuality> quality_of(const Recipe& recipe, const Constants& constants, const Capture& capture,
                                 int n_threads);

}  // namespace kvant
