// Estimates sensitivities without a run of the model for each: the effect of each format of a ladder on the
// predictions in every (layer, KV head, side), to second order. It takes one forward and one backward pass
// over a context.
#pragma once

#include <vector>

#include "base/result.h"
#include "calibrate/model_gradient.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Nats per scored position, by place_of() and rung: [ladder.size()] for each place.
using Sensitivities = std::vector<std::vector<float>>;
inline int place_of(const Geometry& g, int layer, int kv_head, Side side) {
  return g.head_index(layer, kv_head) * 2 + static_cast<int>(side);
}

// The estimate of one context, accumulated layer by layer. Its sealed pages are encoded as the cache would
// encode them.
//
// Errors of a head's K or V change the outputs of its query heads at each position. These changes are
// computed exactly, because few bits of K move the softmax far. Let g be the gradient by these outputs
// (score_gradient.h). Then the change d of a position's outputs costs (g . d)^2 / 2; changes at different
// positions are taken as independent.
class SensitivityEstimate {
 public:
  // known: what the recipe's transforms and formats need.
  SensitivityEstimate(const Geometry& geometry, Recipe recipe, Constants known, int n_threads);

  // Must be called with each layer of a model_gradient(), in any order.
  void add(int layer, const LayerGradient& state);
  // n_scored: number of predictions in the loss of the gradients.
  Sensitivities sensitivities(int n_scored) const;

 private:
  const Geometry& geometry_;
  Recipe recipe_;
  Constants known_;
  int n_threads_;
  Sensitivities all_;  // summed over the positions
};

// Estimates the sensitivities in a pass of its own. Errors: those of model_gradient().
Result<Sensitivities> estimate_sensitivities(DifferentiableModel& model, const Geometry& geometry,
                                             const Recipe& recipe, const Constants& known,
                                             const GradientRequest& request);

// Adds 3 % of the places' mean to each format's sensitivity in every place. Where the estimate is lowest an
// allocation spends the fewest bits, so effects that the estimate misses cost most there.
void add_floor(Sensitivities& sensitivities);

}  // namespace kvant
