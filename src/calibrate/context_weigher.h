// ContextWeigher estimates the sensitivities of recipes that encode K in the queries' metric. The class uses
// the gradients from which the metric is also learned, so each context is read only once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/channel_turn.h"
#include "calibrate/query_metric.h"
#include "calibrate/sensitivity_estimate.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

class ContextWeigher final : public ContextObserver {
 public:
  struct Request {
    std::span<const Recipe> recipes;
    const Geometry& geometry;
    const std::vector<std::vector<ChannelTurn>>& turns;  // RoPE's rotations in each layer
    const Constants& constants;  // everything that the recipes need except metrics and sensitivities
    int n_threads = 1;
    Constants& work;                // receives the results of contexts (weighing.h)
    std::function<void()> advance;  // called after a layer of a context was weighed or skipped
  };
  explicit ContextWeigher(const Request& request);

  // Returns whether any context is still to be weighed.
  bool has_work() const { return !recipes_.empty(); }
  // Returns whether `work` has the results of the context.
  bool knows(int context) const;

  // Begins a context. K is encoded in the metric of earlier contexts, so the first context is not weighed.
  // Returns an error if a recipe lacks a constant.
  Status begin(int context, const QueryMoments& before) override;
  void visit(int layer, const LayerGradient& state) override;
  void end(int context, int n_scored) override;

 private:
  Request request_;
  std::vector<Recipe> recipes_;
  std::vector<const Recipe*> open_;  // the recipes that weigh the current context; each has an estimate
  std::vector<SensitivityEstimate> estimates_;
};

}  // namespace kvant
