// AllocationSearch: corrects the sensitivities that calibration measured. They were measured one head at a
// time with the probe's bits. Heads behave a little differently together and at other bits. Four numbers bend
// the sensitivities. Each bend gives another allocation of the same size, and the one whose cache performs
// best is kept.
#pragma once

#include <functional>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// With all zero the sensitivities are unchanged.
struct SensitivityBend {
  double keys = 0;   // K's sensitivities are multiplied by 2^keys
  double depth = 0;  // those of the last layer are multiplied by 2^depth, relative to the first
  // the probe's sensitivity to the power 1 + contrast; a larger value widens differences between heads
  double contrast = 0;
  // a format's sensitivity over the probe's to the power 1 + curve; a larger value makes few bits cost more
  double curve = 0;
  bool operator==(const SensitivityBend&) const = default;
};

// Returns `constants` with the sensitivities of `recipe`'s ladder bent.
Constants bent_sensitivities(const Constants& constants, const Recipe& recipe, const Geometry& geometry,
                             const SensitivityBend& bend);

struct BendTrial {
  SensitivityBend bend;
  double divergence = 0;
};

// Pattern search (Hooke and Jeeves 1961) from the unbent sensitivities. It moves one number at a time by one
// step up or down and keeps what lowers the divergence. When nothing does, it halves the steps. measure is
// called at most n_trials times, first with no bend. Returns all trials; an error of measure ends the search.
Result<std::vector<BendTrial>> search_bends(
    int n_trials, const std::function<Result<double>(const SensitivityBend&)>& measure);
// Returns the trial with the least divergence, the first of equals. Requires trials.
const BendTrial& best_trial(const std::vector<BendTrial>& trials);

}  // namespace kvant
