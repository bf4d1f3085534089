#include "calibrate/context_weigher.h"

#include <algorithm>
#include <utility>

#include "calibrate/learn_page_metrics.h"
#include "calibrate/needs.h"
#include "calibrate/weighing.h"

namespace kvant {

ContextWeigher::ContextWeigher(const Request& request) : request_(request) {
  const Geometry& g = request_.geometry;
  const auto name = [&](const Recipe& recipe) {
    return stored_sensitivity(recipe, g, /*layer=*/0, /*kv_head=*/0, Side::key);
  };
  for (const Recipe& recipe : request_.recipes) {
    if (recipe.budget == 0 || !needs_page_metrics({&recipe, 1}, g)) continue;
    if (!request_.constants.find(0, 0, Side::key, name(recipe)).empty()) continue;
    const bool twice = std::any_of(recipes_.begin(), recipes_.end(),
                                   [&](const Recipe& other) { return name(other) == name(recipe); });
    if (!twice) recipes_.push_back(recipe);
  }
}

bool ContextWeigher::knows(int context) const {
  const int weighed = context - kContextsBeforeWeighed;
  return weighed < 0 || std::all_of(recipes_.begin(), recipes_.end(), [&](const Recipe& recipe) {
           return is_weighed(recipe, request_.geometry, weighed, request_.work);
         });
}

Status ContextWeigher::begin(int context, const QueryMoments& before) {
  open_.clear();
  estimates_.clear();
  const int weighed = context - kContextsBeforeWeighed;
  if (weighed < 0) return {};
  const Geometry& g = request_.geometry;
  for (const Recipe& recipe : recipes_)
    if (!is_weighed(recipe, g, weighed, request_.work)) open_.push_back(&recipe);
  if (open_.empty()) return {};
  Constants constants = request_.constants;
  learn_page_metrics(recipes_, g, before, request_.turns, request_.n_threads, constants);
  for (const Recipe* recipe : open_) {
    auto known = constants_except_sensitivities(*recipe, g, constants);
    if (!known.ok()) return known.error();
    estimates_.emplace_back(g, *recipe, std::move(*known), request_.n_threads);
  }
  return {};
}

void ContextWeigher::visit(int layer, const LayerGradient& state) {
  for (SensitivityEstimate& estimate : estimates_) estimate.add(layer, state);
  request_.advance();
}

void ContextWeigher::end(int context, int n_scored) {
  for (std::size_t i = 0; i < open_.size(); ++i)
    keep_weighed(*open_[i], request_.geometry, context - kContextsBeforeWeighed,
                 estimates_[i].sensitivities(n_scored), request_.work);
}

}  // namespace kvant
