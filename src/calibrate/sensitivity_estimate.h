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

// One context's, found layer by layer. Its sealed pages are encoded as the cache would.
//
// Errors of a head's K or V change what its query heads give at each position: by how much is computed, not
// estimated, as few bits of K move the softmax far. With g the gradient by these outputs
// (score_gradient.h), the change d of a position's costs (g . d)^2 / 2; those of different positions
// are taken as independent.
class SensitivityEstimate {
 public:
  // known: what the recipe's transforms and formats need.
  SensitivityEstimate(const Geometry& geometry, Recipe recipe, Constants known, int n_threads);

  // To be called with each layer of a model_gradient(), in any order.
  void add(int layer, const LayerGradient& state);
  // n_scored: predictions that the gradients are of.
  Sensitivities sensitivities(int n_scored) const;

 private:
  const Geometry& geometry_;
  Recipe recipe_;
  Constants known_;
  int n_threads_;
  Sensitivities all_;  // summed over the positions
};

// The same, with a pass of its own. Errors: those of model_gradient().
Result<Sensitivities> estimate_sensitivities(DifferentiableModel& model, const Geometry& geometry,
                                             const Recipe& recipe, const Constants& known,
                                             const GradientRequest& request);

// Adds 3 % of the places' mean to each format's sensitivity in every place: where the estimate is lowest the
// fewest bits go, and what it doesn't see costs most.
void add_floor(Sensitivities& sensitivities);

}  // namespace kvant
