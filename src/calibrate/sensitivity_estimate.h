// Sensitivities without a run of the model for each: what each format of a ladder does to the predictions in
// every (layer, KV head, side), to second order, from one pass over a context and one back.
#pragma once

#include <vector>

#include "base/result.h"
#include "calibrate/model_gradient.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// By place: [ladder.size()], nats a scored position.
using Sensitivities = std::vector<std::vector<float>>;
inline int place_of(const Geometry& g, int layer, int kv_head, Side side) {
  return g.head_index(layer, kv_head) * 2 + static_cast<int>(side);
}

// The context's sealed pages are encoded as the cache would. `known`: what the recipe's transforms and
// formats need.
//
// An error e of a token's K or V where the gradient is g costs (g . e)^2 / 2. The trellis' errors have no
// direction but one: they shorten the token. So the mean is taken from the parts of g and e along the token's
// rest r (its value less the page's mean), and from what is left of both, as if e pointed anywhere across:
//   (g . r)^2 (e . r)^2 / |r|^4 + |g across|^2 |e across|^2 / (d - 1)
// which has the mean of (g . e)^2, and less noise. Where errors of K are shaped by a metric M of the queries,
// |e across|^2 stands for e M e / (mean of M's eigenvalues): gradients by K are sums of queries. Errors of
// different tokens are independent, but not those of one word: in the first layers its occurrences have
// nearly the same K and V. By how much these add up, (sum of g . e over a word's occurrences)^2 against the
// sum of (g . e)^2, is found for each side of a layer. Errors: those of
// model_gradient().
Result<Sensitivities> estimate_sensitivities(DifferentiableModel& model, const Geometry& geometry,
                                             const Recipe& recipe, const Constants& known,
                                             const GradientRequest& request);

// Adds a tenth of the places' mean to each format's sensitivity in every place. What the second order
// doesn't see, errors so large that layers answer more than in proportion, and places that go wrong together,
// costs most where the estimate is lowest: there the fewest bits go
// (docs/lab/2026-11-23-one-pass-calibration.md).
void add_floor(Sensitivities& sensitivities);

}  // namespace kvant
