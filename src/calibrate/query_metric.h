// Finds the metric for query-weighted errors of K (format/error_metric.h), from a model's queries. K must be
// stored most exactly in the directions that matter most for the products with queries.
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

// QueryMoments holds a matrix [d, d] for each KV head, by Geometry::head_index. The matrix has the second
// moments of the queries that read the head, before RoPE.
using QueryMoments = std::vector<std::vector<double>>;

// The moments come from this many contexts of this many tokens.
inline constexpr int kQueryContexts = 6, kQueryTokens = 1024;
// Returns the number of first tokens of a context whose predictions do not count, because their queries read
// no sealed page. All later predictions count, because predictions differ more between texts than between
// positions.
constexpr int first_scored_query(int n_tokens) {
  return std::min(kPageTokens, n_tokens / 2);
}

// Moves a context from the middle of the text to the front. The first context only supplies queries
// (weighing.h), and the start of a text is less typical than its middle.
std::vector<Sample> in_reading_order(std::vector<Sample> contexts);

// ContextObserver receives the gradients of contexts while query_moments() reads them, and uses the gradients
// for another purpose.
class ContextObserver {
 public:
  virtual ~ContextObserver() = default;
  // query_moments() calls this before it reads a context. `before` holds the moments of earlier contexts. An
  // error ends the reading.
  virtual Status begin(int context, const QueryMoments& before) = 0;
  // query_moments() calls this for each layer of the context, from the last to the first.
  virtual void visit(int layer, const LayerGradient& state) = 0;
  virtual void end(int context, int n_scored) = 0;  // n_scored predictions count
};

// ReadContexts holds the results of the first n contexts.
struct ReadContexts {
  int n = 0;
  QueryMoments sums;  // sums for each Geometry::head_index; empty if n is 0
};

struct QueryMomentsRequest {
  const std::vector<Sample>& contexts;
  std::uint64_t seed = 0;
  int n_threads = 1;
  std::function<void(int)> advance;         // called after n more of each context's gradient_steps() are done
  const std::atomic<bool>* stop = nullptr;  // once true, the error "interrupted" is returned; may be null
  ContextObserver* observer = nullptr;
  // Contexts that were read before are not read again. Each newly read context is added. `read` may be null.
  ReadContexts* read = nullptr;
  std::function<void()> context_done;  // called after each context that was added; may be empty
};

// Returns moments in which each query has a weight, the effect of errors of the query's scores on the
// predictions. The effect is the norm of the derivative by the scores (score_gradient.h), over the tokens
// that the query reads from sealed pages. To second order, the square of the norm would be right. But a few
// queries dominate the squares, which in short texts are noise. Returns the errors of model_gradient().
Result<QueryMoments> query_moments(DifferentiableModel& model, const Geometry& geometry,
                                   const QueryMomentsRequest& request);

// Returns the directions V [d][kMetricRank] of an ErrorMetric, for second moments [d, d] of queries. The
// directions and the moments apply to values before `transform`. The directions belong to the largest
// eigenvalues in the transformed basis, in which all channels have similar errors. A tenth of the mean is
// added to all eigenvalues.
std::vector<float> query_metric(const std::vector<double>& moments, const Transform& transform, int d);

}  // namespace kvant
