#include "calibrate/capture_size.h"

#include <algorithm>

#include "calibrate/adapter_data.h"

namespace kvant {
namespace {

constexpr std::int64_t kMaxCaptureBytes = std::int64_t{2} << 30;

bool trains_adapters(std::span<const Recipe> recipes) {
  return std::ranges::any_of(recipes,
                             [](const Recipe& recipe) { return recipe.correction != Correction::none; });
}

}  // namespace

bool learns_from_samples(std::span<const Recipe> recipes, const Geometry& geometry) {
  for (const HeadNeeds& head : needs_of(recipes, geometry)) {
    for (const ScopedNeed& constant : head.constants)
      if (!has_own_text(constant.need.kind)) return true;
  }
  return false;
}

CaptureSize capture_size(std::span<const Recipe> recipes, const Geometry& geometry,
                         const CalibrationSettings& settings) {
  const CalibrationSettings& s = settings;
  CaptureSize size{learns_from_samples(recipes, geometry) ? s.samples : 0, s.length, s.rows, s.passages};
  size.seed = s.seed;
  if (!trains_adapters(recipes)) return bounded(geometry, size, kMaxCaptureBytes);
  size.contexts = s.contexts;
  size.context_length = std::min(s.context_length, geometry.trained_context);
  size.first_query = kFirstCorrectedQuery;
  size.context_queries = std::clamp(size.context_length - kFirstCorrectedQuery, 0, s.context_queries);
  if (size.context_queries == 0) size.contexts = 0;
  // A user who asks for more contexts than usual gets them, whatever memory they take.
  const bool asks_for_more = s.contexts > CalibrationSettings{}.contexts ||
                             s.context_queries > CalibrationSettings{}.context_queries;
  return asks_for_more ? size : bounded(geometry, size, kMaxCaptureBytes);
}

SampleSize sample_size(const CaptureSize& kept) {
  return {kept.samples, kept.passages, kept.length, kept.contexts, kept.context_length, kept.seed};
}

}  // namespace kvant
