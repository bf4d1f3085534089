// Weighing: the sensitivities of a recipe's ladder in every (layer, KV head, side) of a model, from some
// contexts.
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

// Sensitivities are estimated on the contexts of queries (query_metric.h) but the first. Texts differ: one
// context's costs, and the truth no less, are those of another within a factor of two for most places.
inline constexpr int kContextsBeforeWeighed = 1;

struct WeighingRequest {
  DifferentiableModel& model;
  const Geometry& geometry;
  const Recipe& recipe;    // with a budget
  const Constants& known;  // what it needs beside its sensitivities
  const std::vector<Sample>& contexts;
  std::uint64_t seed = 0;
  int n_threads = 1;
  const std::atomic<bool>* stop = nullptr;  // once true: the error "interrupted"; null: never
  std::function<void()> context_done;       // after each that was weighed; may be empty
};

// Estimates on one context after the other (sensitivity_estimate.h); returns their mean. What each context
// gave is kept in `work`; contexts that are there already are not read again. Shows its progress on stderr.
Result<Sensitivities> weigh_contexts(const WeighingRequest& request, Constants& work);

// The mean of what so many contexts gave.
Sensitivities mean_of_weighed(const Recipe& recipe, const Geometry& geometry, int n_contexts,
                              const Constants& work);

// Adds the sensitivities that such a mean says to `constants` (format_shares.h; add_floor).
void keep_sensitivities(const Recipe& recipe, const Geometry& geometry, const Sensitivities& mean,
                        Constants& constants);

// What a recipe needs of `stored` beside its sensitivities, by the names that resolve() looks for.
Result<Constants> constants_beside_sensitivities(const Recipe& recipe, const Geometry& geometry,
                                                 const Constants& stored);

// Whether `work` has what that context gives; what it gave, to be kept there.
bool is_weighed(const Recipe& recipe, const Geometry& geometry, int context, const Constants& work);
void keep_weighed(const Recipe& recipe, const Geometry& geometry, int context,
                  const Sensitivities& sensitivities, Constants& work);

// Whether `name` is that of an array in `work`.
bool is_weighed_context(const std::string& name);

}  // namespace kvant
