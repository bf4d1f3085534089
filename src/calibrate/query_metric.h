// The metric for errors of K (format/error_metric.h), from a model's queries.
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

// Second moments [d, d] of the queries that read a KV head, taken before RoPE, by Geometry::head_index.
using QueryMoments = std::vector<std::vector<double>>;

// Contexts on which queries are read, and their tokens.
inline constexpr int kQueryContexts = 6, kQueryTokens = 1024;
// Tokens at the beginning of such a context whose predictions don't count, because their queries read no
// sealed page. (All later ones count: texts differ more than depths do.)
constexpr int first_scored_query(int n_tokens) {
  return std::min(kPageTokens, n_tokens / 2);
}

// Moves a context from the middle of the text to the front. The first context only supplies queries
// (weighing.h), and the beginning of a text is less typical than its middle.
std::vector<Sample> in_reading_order(std::vector<Sample> contexts);

// Observes the contexts' gradients for other purposes.
class ContextObserver {
 public:
  virtual ~ContextObserver() = default;
  // A context is about to be read; before: the moments of earlier contexts. An error ends the reading.
  virtual Status begin(int context, const QueryMoments& before) = 0;
  // Called for each layer of it, from the last to the first.
  virtual void visit(int layer, const LayerGradient& state) = 0;
  virtual void end(int context, int n_scored) = 0;  // n_scored: number of predictions that count
};

// The results of the first contexts.
struct ReadContexts {
  int n = 0;
  QueryMoments sums;  // by Geometry::head_index if n > 0
};

struct QueryMomentsRequest {
  const std::vector<Sample>& contexts;
  std::uint64_t seed = 0;
  int n_threads = 1;
  std::function<void(int)> advance;         // called after n more of gradient_steps() of each context
  const std::atomic<bool>* stop = nullptr;  // when true: the error "interrupted"; null: never
  ContextObserver* observer = nullptr;
  // Contexts that were read before and aren't read again; each newly read one is added. Null: none.
  ReadContexts* read = nullptr;
  std::function<void()> context_done;  // called after each context that was added; may be empty
};

// Weighs each query by the effect of errors of its scores on the predictions: the norm of the derivative by
// these scores (score_gradient.h), over the tokens that it reads from sealed pages. (To second order the
// square would be right. But a few queries dominate the squares, and in short texts these are noise.) Errors:
// those of model_gradient().
Result<QueryMoments> query_moments(DifferentiableModel& model, const Geometry& geometry,
                                   const QueryMomentsRequest& request);

// Returns the directions V [d][kMetricRank] of an ErrorMetric for second moments [d, d] of queries, both
// before `transform`. They belong to the largest eigenvalues in the transformed basis, in which errors are
// alike. A tenth of the mean is added to all eigenvalues.
std::vector<float> query_metric(const std::vector<double>& moments, const Transform& transform, int d);

}  // namespace kvant
