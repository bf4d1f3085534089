// Estimates the effect of each format of a ladder on the predictions, in every (layer, KV head, side), to
// second order. One forward and one backward pass over a context give all estimates, in place of one run of
// the model for each.
#pragma once

#include <vector>

#include "base/result.h"
#include "calibrate/model_gradient.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Sensitivities has [ladder.size()] values for each place, in nats per scored position. place_of() numbers
// the places.
using Sensitivities = std::vector<std::vector<float>>;
inline int place_of(const Geometry& g, int layer, int kv_head, Side side) {
  return g.head_index(layer, kv_head) * 2 + static_cast<int>(side);
}

// SensitivityEstimate is the estimate of one context, accumulated layer by layer. The context's sealed pages
// are encoded as the cache would encode them.
//
// Errors of a head's K or V change the outputs of its query heads at each position. The changes are computed
// exactly, because K in few bits moves the softmax far. Let g be the gradient by these outputs
// (score_gradient.h). A change d of a position's outputs then costs (g . d)^2 / 2. Changes at different
// positions count as independent.
class SensitivityEstimate {
 public:
  // `known` must have what the recipe's transforms and formats need.
  SensitivityEstimate(const Geometry& geometry, Recipe recipe, Constants known, int n_threads);

  // Adds one layer. add() must be called for each layer of a model_gradient(), in any order.
  void add(int layer, const LayerGradient& state);
  // Returns the estimates. n_scored predictions count in the gradients.
  Sensitivities sensitivities(int n_scored) const;

 private:
  const Geometry& geometry_;
  Recipe recipe_;
  Constants known_;
  int n_threads_;
  Sensitivities all_;  // sums over the positions
};

// Estimates the sensitivities in a separate pass. Returns the errors of model_gradient().
Result<Sensitivities> estimate_sensitivities(DifferentiableModel& model, const Geometry& geometry,
                                             const Recipe& recipe, const Constants& known,
                                             const GradientRequest& request);

// Adds, in every place, 3 % of the places' mean to each format's sensitivity. An allocation spends the fewest
// bits where the estimate is lowest. Effects that the estimate misses would do most harm there.
void add_floor(Sensitivities& sensitivities);

}  // namespace kvant
