// ContextWeigher: sensitivities of recipes whose K is encoded in the metric of the queries, from the
// gradients by which these are read. So a context is read once.
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
    const std::vector<std::vector<ChannelTurn>>& turns;  // RoPE's, of each layer
    const Constants& constants;  // all that the recipes need but metrics and sensitivities
    int n_threads = 1;
    Constants& work;                // gets what contexts give (weighing.h)
    std::function<void()> advance;  // after a layer of a context was weighed or needs not be
  };
  explicit ContextWeigher(const Request& request);

  // Whether there is anything to weigh in some context.
  bool has_work() const { return !recipes_.empty(); }
  // Whether `work` has what the context gives.
  bool knows(int context) const;

  // The first contexts aren't weighed: K is encoded in the metric of contexts before. An error: a recipe
  // without what it needs.
  Status begin(int context, const QueryMoments& before) override;
  void visit(int layer, const LayerGradient& state) override;
  void end(int context, int n_scored) override;

 private:
  Request request_;
  std::vector<Recipe> recipes_;
  std::vector<const Recipe*> open_;  // of the context, each with an estimate
  std::vector<SensitivityEstimate> estimates_;
};

}  // namespace kvant
