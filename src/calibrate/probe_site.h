// ProbeSite: where the model runs to measure sensitivities (sensitivity.h), and what holds all but the probed
// heads in these runs.
#pragma once

#include <string>

#include "calibrate/read_samples.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

struct ProbeSite {
  SampleReader model;
  std::string rest = "bf16";  // a format

  // What a probed cache is held against.
  Recipe base(const Recipe& recipe) const;
  // The same with one token more in the sink, one less where it is a whole page: predictions change, but for
  // what that makes the model round otherwise, by next to nothing.
  Recipe barely_changed(const Recipe& recipe) const;
};

// `reader`, if its device can have the recipe's probe format in one layer's side and another in the rest:
// bf16, or 8 bits where its pages are of codes alone, in both runs that are compared. Else `host`, with a
// warning. learned: what the recipe needs beside its sensitivities.
ProbeSite probe_site(const SampleReader& reader, const SampleReader& host, const Recipe& recipe,
                     const Constants& learned);

}  // namespace kvant
