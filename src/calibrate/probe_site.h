// Chooses where probes run. Probes measure sensitivities (sensitivity.h). ProbeSite holds the model that
// runs, and the format of all heads that are not probed.
#pragma once

#include <string>

#include "calibrate/read_samples.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

struct ProbeSite {
  SampleReader model;
  std::string rest = "bf16";  // the format of all other heads

  // Returns the recipe with which probed caches are compared.
  Recipe base(const Recipe& recipe) const;
  // Returns base() with one more token in the sink, or with one less if the sink is a whole page. Apart from
  // rounding, predictions hardly change.
  Recipe barely_changed(const Recipe& recipe) const;
};

// Returns a site on the reader's device if the device supports the probe format in one layer's side, and
// another format elsewhere. The other format is bf16, or 8 bits if the device has only pages of codes. Both
// of the compared runs use the other format. Otherwise, prints a warning and returns a site on `host`.
// `learned` holds what the recipe needs besides its sensitivities.
ProbeSite probe_site(const SampleReader& reader, const SampleReader& host, const Recipe& recipe,
                     const Constants& learned);

}  // namespace kvant
