// AllocationSearch: how much to trust the sensitivities that calibration has measured. They were found one
// head at a time; together, and at other bits than the probe's, heads behave a little differently. Four
// numbers bend the sensitivities, each bend gives another allocation of the same size, and the one whose
// cache does best is kept.
#pragma once

#include <functional>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// With all zero the sensitivities stay as they are.
struct SensitivityBend {
  double keys = 0;      // K's sensitivities times 2^keys
  double depth = 0;     // those of the last layer times 2^depth, against the first
  double contrast = 0;  // the probe's sensitivity to the power 1 + contrast: differences between heads grow
  double curve = 0;     // a format's sensitivity over the probe's to the power 1 + curve: few bits cost more
  bool operator==(const SensitivityBend&) const = default;
};

// `constants`, with the sensitivities of `recipe`'s ladder bent.
Constants bent_sensitivities(const Constants& constants, const Recipe& recipe, const Geometry& geometry,
                             const SensitivityBend& bend);

struct BendTrial {
  SensitivityBend bend;
  double divergence = 0;
};

// Pattern search (Hooke and Jeeves 1961): from the unbent sensitivities, one number at a time one step up or
// down, whatever lowers the divergence stays; half the steps when nothing does. At most n_trials calls of
// measure, the first with no bend. Returns all trials; an error of measure ends it.
Result<std::vector<BendTrial>> search_bends(
    int n_trials, const std::function<Result<double>(const SensitivityBend&)>& measure);
// The one with the least divergence, the first of equals. Requires trials.
const BendTrial& best_trial(const std::vector<BendTrial>& trials);

}  // namespace kvant
