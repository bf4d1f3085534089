// Determines how much text calibration reads and keeps for given recipes. Recipes that learn nothing from
// captured values need no samples.
#pragma once

#include <span>

#include "base/geometry.h"
#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "calibrate/needs.h"
#include "calibrate/samples.h"
#include "recipe/recipe.h"

namespace kvant {

// Returns whether calibration learns a need from separate contexts rather than from captured values.
constexpr bool has_own_text(NeedKind kind) {
  return kind == NeedKind::sensitivity || kind == NeedKind::metric || kind == NeedKind::sampled_metric;
}

// Returns whether calibration learns something of a recipe from captured values.
bool learns_from_samples(std::span<const Recipe> recipes, const Geometry& geometry);

CaptureSize capture_size(std::span<const Recipe> recipes, const Geometry& geometry,
                         const CalibrationSettings& settings);

// Returns the samples that fill a capture of this size.
SampleSize sample_size(const CaptureSize& kept);

}  // namespace kvant
