#include "calibrate/query_metric.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "calibrate/model_gradient.h"
#include "calibrate/symmetric_eigen.h"
#include "format/error_metric.h"

namespace kvant {
namespace {

// This share of the mean eigenvalue is added to all eigenvalues, because queries of other texts differ.
constexpr double kFloor = 0.1;

// Returns A of the transform of rows, k -> k A + b.
std::vector<double> linear_part(const Transform& transform, int d) {
  std::vector<float> units(static_cast<std::size_t>(d) * d, 0.0F), origin(d, 0.0F);
  for (int i = 0; i < d; ++i) units[static_cast<std::size_t>(i) * d + i] = 1;
  transform.forward({units.data(), d, d});
  transform.forward({origin.data(), 1, d});
  std::vector<double> map;
  for (std::size_t i = 0; i < units.size(); ++i) map.push_back(double{units[i]} - origin[i % d]);
  return map;
}

// Returns B^T M B, where M are the moments and the transform maps queries (rows) q to q B.
std::vector<double> moments_after(const Transform& transform, const std::vector<double>& moments, int d) {
  std::vector<float> map(moments.size(), 0.0F);
  for (int i = 0; i < d; ++i) map[static_cast<std::size_t>(i) * d + i] = 1;
  transform.query({map.data(), d, d}, nullptr);
  const auto product = [d](auto a, auto b) {  // the sum over k of a(i, k) b(k, j)
    std::vector<double> out(static_cast<std::size_t>(d) * d, 0.0);
    for (int i = 0; i < d; ++i)
      for (int k = 0; k < d; ++k)
        for (int j = 0; j < d; ++j) out[static_cast<std::size_t>(i) * d + j] += a(i, k) * b(k, j);
    return out;
  };
  const auto of = [d](const auto& matrix) {
    return [&matrix, d](int i, int j) -> double { return matrix[static_cast<std::size_t>(i) * d + j]; };
  };
  const std::vector<double> right = product(of(moments), of(map));
  return product([&](int i, int k) -> double { return map[static_cast<std::size_t>(k) * d + i]; }, of(right));
}

}  // namespace

std::vector<Sample> in_reading_order(std::vector<Sample> contexts) {
  if (!contexts.empty()) std::swap(contexts.front(), contexts[contexts.size() / 2]);
  return contexts;
}

Result<QueryMoments> query_moments(DifferentiableModel& model, const Geometry& geometry,
                                   const QueryMomentsRequest& request) {
  ReadContexts none;
  ReadContexts& read = request.read == nullptr ? none : *request.read;
  read.sums.resize(geometry.n_all_kv_heads());
  for (std::size_t c = read.n; c < request.contexts.size(); ++c) {
    const auto context = static_cast<int>(c);
    QueryMoments of_context(read.sums.size());  // a partly read context does not count
    if (request.observer != nullptr) KVANT_RETURN_IF_ERROR(request.observer->begin(context, read.sums));
    const std::vector<std::int32_t>& tokens = request.contexts[c].tokens;
    const int first_scored = first_scored_query(static_cast<int>(tokens.size()));
    const GradientRequest asked{tokens,          first_scored, request.seed + c, request.n_threads,
                                request.advance, request.stop};
    const auto done = model_gradient(model, asked, [&](int layer, const LayerGradient& state) {
      for (int head = 0; head < geometry.kv_heads(layer); ++head) {
        of_context[geometry.head_index(layer, head)] = state.query_moments(head);
      }
      if (request.observer != nullptr) request.observer->visit(layer, state);
    });
    if (!done.ok()) return done.error();
    if (request.observer != nullptr)
      request.observer->end(context, static_cast<int>(tokens.size()) - first_scored);
    for (std::size_t head = 0; head < of_context.size(); ++head) {
      std::vector<double>& sums = read.sums[head];
      sums.resize(of_context[head].size());
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_context[head][i];
    }
    read.n = context + 1;
    if (request.context_done) request.context_done();
  }
  return read.sums;
}

std::vector<float> query_metric(const std::vector<double>& moments, const Transform& transform, int d) {
  std::vector<float> directions(static_cast<std::size_t>(d) * kMetricRank, 0.0F);
  const SymmetricEigen eigen = symmetric_eigen(moments_after(transform, moments, d), d);
  double mean = 0, rest = 0;
  for (int i = 0; i < d; ++i) mean += std::max(eigen.values[i], 0.0) / d;
  if (!(mean > 0)) return directions;  // no query reads this head, so all directions have equal weight
  for (int i = kMetricRank; i < d; ++i) rest += std::max(eigen.values[i], 0.0) / (d - kMetricRank);
  rest += kFloor * mean;
  const std::vector<double> back = linear_part(transform, d);  // A, whose transpose is the inverse of B
  for (int r = 0; r < kMetricRank; ++r) {
    const double value = std::max(eigen.values[r], 0.0) + kFloor * mean;
    const double length = std::sqrt(std::max(value / rest - 1, 0.0));
    const double* vector = eigen.vectors.data() + static_cast<std::ptrdiff_t>(r) * d;
    for (int i = 0; i < d; ++i) {
      const double* row = back.data() + static_cast<std::ptrdiff_t>(i) * d;
      directions[static_cast<std::size_t>(i) * kMetricRank + r] =
          static_cast<float>(length * std::inner_product(vector, vector + d, row, 0.0));
    }
  }
  return directions;
}

}  // namespace kvant
