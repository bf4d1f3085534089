// Estimates the sensitivities of a recipe's ladder in every (layer, KV head, side) of a model, from several
// contexts. Texts differ, so the result is the mean over contexts. Each context's result is kept, which lets
// an interrupted calibration resume.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "calibrate/samples.h"
#include "calibrate/sensitivity_estimate.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Sensitivities are estimated on the contexts for queries (query_metric.h), except on the first context. In
// most places, two contexts give costs within a factor of two of each other, and the true costs of texts
// differ as much.
inline constexpr int kContextsBeforeWeighed = 1;

struct WeighingRequest {
  DifferentiableModel& model;
  const Geometry& geometry;
  const Recipe& recipe;    // must have a budget
  const Constants& known;  // everything that the recipe needs besides its sensitivities
  const std::vector<Sample>& contexts;
  std::uint64_t seed = 0;
  int n_threads = 1;
  const std::atomic<bool>* stop = nullptr;  // once true, the error "interrupted" is returned; may be null
  std::function<void()> context_done;       // called after each context that was weighed; may be empty
};

// Estimates sensitivities on each context in turn (sensitivity_estimate.h), and returns the mean over
// contexts. Results of contexts are stored in `work`, and contexts that `work` already has are not read
// again. Progress goes to stderr.
Result<Sensitivities> weigh_contexts(const WeighingRequest& request, Constants& work);

// Returns the mean of the results of n_contexts contexts.
Sensitivities mean_of_weighed(const Recipe& recipe, const Geometry& geometry, int n_contexts,
                              const Constants& work);

// Derives sensitivities from the mean of contexts (format_shares.h, add_floor), and adds them to `constants`.
void keep_sensitivities(const Recipe& recipe, const Geometry& geometry, const Sensitivities& mean,
                        Constants& constants);

// Returns the constants of `stored` that a recipe needs besides its sensitivities, by the names that
// resolve() looks up.
Result<Constants> constants_except_sensitivities(const Recipe& recipe, const Geometry& geometry,
                                                 const Constants& stored);

// is_weighed() returns whether `work` has the results of a context. keep_weighed() stores the results.
bool is_weighed(const Recipe& recipe, const Geometry& geometry, int context, const Constants& work);
void keep_weighed(const Recipe& recipe, const Geometry& geometry, int context,
                  const Sensitivities& sensitivities, Constants& work);

// Returns whether `name` is the name of an array in `work`.
bool is_weighed_context(const std::string& name);

}  // namespace kvant
