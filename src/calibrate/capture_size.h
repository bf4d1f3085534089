// How much of a text calibration reads for recipes, and keeps.
#pragma once

#include <span>

#include "base/geometry.h"
#include "calibrate/calibration.h"
#include "calibrate/capture.h"
#include "calibrate/needs.h"
#include "calibrate/samples.h"
#include "recipe/recipe.h"

namespace kvant {

// What is learned on contexts of its own, and not on captured values.
constexpr bool has_own_text(NeedKind kind) {
  return kind == NeedKind::sensitivity || kind == NeedKind::metric;
}

CaptureSize capture_size(std::span<const Recipe> recipes, const Geometry& geometry,
                         const CalibrationSettings& settings);

// The samples that fill such a capture.
SampleSize sample_size(const CaptureSize& kept);

}  // namespace kvant
