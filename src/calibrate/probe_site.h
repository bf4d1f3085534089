// ProbeSite: the model that runs to measure sensitivities (sensitivity.h), and the format of all but the
// probed heads in these runs.
#pragma once

#include <string>

#include "calibrate/read_samples.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

struct ProbeSite {
  SampleReader model;
  std::string rest = "bf16";  // a format

  // The recipe that a probed cache is compared with.
  Recipe base(const Recipe& recipe) const;
  // Returns base() with one more token in the sink, or one less if the sink is a whole page. This changes
  // predictions by almost nothing, except through different rounding.
  Recipe barely_changed(const Recipe& recipe) const;
};

// Returns a site with `reader` if its device supports the recipe's probe format in one layer's side and
// another format in the rest. That other format is bf16, or 8 bits if the device only has pages of codes;
// both compared runs use it. Else returns one with `host`, after a warning. learned: what the recipe needs
// beside its sensitivities.
ProbeSite probe_site(const SampleReader& reader, const SampleReader& host, const Recipe& recipe,
                     const Constants& learned);

}  // namespace kvant
