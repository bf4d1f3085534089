// The metric in which errors of K count (format/error_metric.h), from a model's queries.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <span>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "calibrate/differentiable_model.h"
#include "calibrate/samples.h"
#include "transform/transform.h"

namespace kvant {

// By Geometry::head_index: second moments [d, d] of the queries that read a KV head, as they are before RoPE.
using QueryMoments = std::vector<std::vector<double>>;

// Contexts on which queries are read, and their tokens.
inline constexpr int kQueryContexts = 6, kQueryTokens = 1024;
// Tokens at the beginning of such a context, the predictions of which don't count: their queries read nothing
// that is sealed. (All others do: texts differ more than depths do.)
constexpr int first_scored_query(int n_tokens) {
  return std::min(kPageTokens, n_tokens / 2);
}

// Contexts of a text's parts, one from its middle first: of that one no more than the queries is looked at
// (weighing.h), and where a text begins or ends is more often unlike the rest.
std::vector<Sample> in_reading_order(std::vector<Sample> contexts);

// Looks at what else the contexts' gradients show.
class ContextObserver {
 public:
  virtual ~ContextObserver() = default;
  // A context is about to be read; the moments of those before it. An error ends all.
  virtual Status begin(int context, const QueryMoments& before) = 0;
  // A layer of it, from the last to the first.
  virtual void visit(int layer, const LayerGradient& state) = 0;
  virtual void end(int context, int n_scored) = 0;  // n_scored: its predictions that count
};

// What the first contexts gave.
struct ReadContexts {
  int n = 0;
  QueryMoments sums;  // by Geometry::head_index, where n > 0
};

struct QueryMomentsRequest {
  const std::vector<Sample>& contexts;
  std::uint64_t seed = 0;
  int n_threads = 1;
  std::function<void(int)> advance;         // after n more of gradient_steps() of each context
  const std::atomic<bool>* stop = nullptr;  // once true: the error "interrupted"; null: never
  ContextObserver* observer = nullptr;
  // Contexts that were read before, which aren't read again; joined by each that is. Null: none.
  ReadContexts* read = nullptr;
  std::function<void()> context_done;  // after each that joined them; may be empty
};

// Each query counts by what errors of its scores do to the predictions: the length of the derivative by them
// (score_gradient.h), over the tokens that it reads from sealed pages. (To second order its square counts;
// but the squares of a few queries are most of all, and of short texts they are noise.) Errors: those of
// model_gradient().
Result<QueryMoments> query_moments(DifferentiableModel& model, const Geometry& geometry,
                                   const QueryMomentsRequest& request);

// Directions V [d][kMetricRank] of an ErrorMetric for second moments [d, d] of queries, both as they are
// before `transform`. They are the directions of the largest eigenvalues in the basis behind it, with a tenth
// of the mean added to all: there errors are alike.
std::vector<float> query_metric(const std::vector<double>& moments, const Transform& transform, int d);

}  // namespace kvant
