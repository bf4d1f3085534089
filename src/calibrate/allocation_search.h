// Improves the sensitivities that calibration measured, by trying allocations. Calibration measures one head
// at a time with the bits of the probe format. The effects of several heads do not simply add up, and other
// numbers of bits have other effects. Four numbers therefore bend the sensitivities, and each bend gives
// another allocation of the same size. The search keeps the allocation whose cache performs best.
#pragma once

#include <functional>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// SensitivityBend holds the four exponents of the bend. If all exponents are 0, sensitivities do not change.
struct SensitivityBend {
  double keys = 0;   // K's sensitivities are multiplied by 2^keys
  double depth = 0;  // the last layer's sensitivities are multiplied by 2^depth relative to the first layer's
  // The probe format's sensitivity is raised to the power 1 + contrast. A larger number widens the
  // differences between heads.
  double contrast = 0;
  // The ratio of a format's sensitivity to the probe format's is raised to the power 1 + curve. A larger
  // number makes few bits cost more.
  double curve = 0;
  bool operator==(const SensitivityBend&) const = default;
};

// Returns `constants` in which the sensitivities of the recipe's ladder are bent.
Constants bent_sensitivities(const Constants& constants, const Recipe& recipe, const Geometry& geometry,
                             const SensitivityBend& bend);

struct BendTrial {
  SensitivityBend bend;
  double divergence = 0;
};

// Runs a pattern search (Hooke and Jeeves 1961) from the unbent sensitivities. The search moves one number at
// a time by one step up or down, and keeps a move that lowers the divergence. When no move lowers the
// divergence, the steps are halved. `measure` returns the divergence of a bend, and is called at most
// n_trials times, first with all exponents 0. Returns all trials. An error of `measure` ends the search.
Result<std::vector<BendTrial>> search_bends(
    int n_trials, const std::function<Result<double>(const SensitivityBend&)>& measure);
// Returns the trial with the smallest divergence, or the first of several equal trials. There must be at
// least one trial.
const BendTrial& best_trial(const std::vector<BendTrial>& trials);

}  // namespace kvant
