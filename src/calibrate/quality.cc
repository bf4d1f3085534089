#include "calibrate/quality.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "base/softmax.h"
#include "base/team.h"
#include "cache/page_counts.h"
#include "calibrate/needs.h"
#include "calibrate/row_sums.h"
#include "calibrate/through_cache.h"

namespace kvant {
namespace {

constexpr int kQueries = 32;  // the outputs of this many last tokens of a passage are compared

struct Sums {
  double difference[3] = {};  // sums of squares for K, V and the output
  double energy[3] = {};
  void add(int which, float exact, float got) {
    const double d = static_cast<double>(got) - exact;
    difference[which] += d * d;
    energy[which] += static_cast<double>(exact) * exact;
  }
  void add(const Sums& other) {
    for (int i = 0; i < 3; ++i) {
      difference[i] += other.difference[i];
      energy[i] += other.energy[i];
    }
  }
  double relative(int which) const { return energy[which] > 0 ? difference[which] / energy[which] : 0; }
};

// Returns the attention output [d] of token `query`, whose query vector is q. `sink` is the head's sink
// logit, or -inf.
std::vector<float> attend(const Geometry& geometry, int layer, float sink, int query, const float* q,
                          const std::vector<float>& all_k, const std::vector<float>& all_v) {
  const int d = geometry.dim(layer);
  const int first = first_visible_token(query, geometry.sliding_window[layer]), n = query + 1 - first;
  const float* k = all_k.data() + static_cast<std::ptrdiff_t>(first) * d;
  const float* v = all_v.data() + static_cast<std::ptrdiff_t>(first) * d;
  std::vector<float> weights(n);
  for (int t = 0; t < n; ++t) {
    auto score = static_cast<float>(dot_row(q, k + static_cast<std::ptrdiff_t>(t) * d, d));
    score *= geometry.softmax_scale;
    if (geometry.score_softcap > 0)
      score = geometry.score_softcap * std::tanh(score / geometry.score_softcap);
    weights[t] = score;
  }
  const float max = std::max(sink, max_row(weights.data(), n));
  const float sum = exp_row(weights.data(), n, max) + std::exp(sink - max);
  std::vector<float> output(d);
  for (int t = 0; t < n; ++t)
    add_scaled_row(output.data(), v + static_cast<std::ptrdiff_t>(t) * d, d, weights[t] / sum);
  return output;
}

Sums measure_head(const Capture& capture, const Plan& plan, int layer, int kv_head) {
  const Geometry& g = plan.geometry;
  const HeadPlan& head = plan.head(layer, kv_head);
  const int sink = plan.layers[layer].sink;
  const int n_pages = capture.size().length / kPageTokens;
  const int n = n_pages * kPageTokens;
  const std::size_t used = static_cast<std::size_t>(n) * g.dim(layer);
  Sums sums;
  for (int p = 0; p < capture.size().passages; ++p) {
    std::vector<float> exact[2], got[2];
    for (const Side side : kSides) {
      const int s = static_cast<int>(side);
      exact[s] = capture.passage(p, layer, kv_head, side);
      exact[s].resize(used);
      const SidePlan& stored = head.side(side);
      got[s] = through_cache(*stored.sealed, stored.transform, stored.context, sink,
                             capture.passage_position(p), exact[s]);
      for (std::size_t i = 0; i < used; ++i) sums.add(s, exact[s][i], got[s][i]);
    }
    for (int h = kv_head * g.group(layer); h < (kv_head + 1) * g.group(layer); ++h) {
      const std::vector<float> queries = capture.passage_queries(p, layer, h);
      for (int t = std::max(0, n - kQueries); t < n; ++t) {
        const float* q = queries.data() + static_cast<std::ptrdiff_t>(t) * g.dim(layer);
        const float sink_logit = g.sink_logit(layer, h);
        const std::vector<float> right = attend(g, layer, sink_logit, t, q, exact[0], exact[1]);
        const std::vector<float> output = attend(g, layer, sink_logit, t, q, got[0], got[1]);
        for (int i = 0; i < g.dim(layer); ++i) sums.add(2, right[i], output[i]);
      }
    }
  }
  return sums;
}

}  // namespace

RecipeQuality measure_quality(const Capture& capture, const Plan& plan, int n_threads) {
  const Geometry& g = plan.geometry;
  RecipeQuality quality;
  quality.recipe = to_string(plan.recipe);
  if (capture.size().length < kPageTokens) return quality;
  std::vector<Sums> of_head(static_cast<std::size_t>(g.n_all_kv_heads()));
  run_team(n_threads, [&](Team& team) {
    team.for_each(static_cast<int>(of_head.size()), [&](int i) {
      const HeadConstants& where = plan.heads[i].k.context.constants;
      of_head[i] = measure_head(capture, plan, where.layer, where.kv_head);
    });
  });
  Sums sums;  // summed in a fixed order, so the result does not depend on the number of threads
  for (const Sums& head : of_head) sums.add(head);
  quality.key_error = sums.relative(0);
  quality.value_error = sums.relative(1);
  quality.output_error = sums.relative(2);
  return quality;
}

Result<RecipeQuality> quality_of(const Recipe& recipe, const Constants& constants, const Capture& capture,
                                 int n_threads) {
  const Geometry& geometry = capture.geometry();
  auto found = constants_for(recipe, geometry, constants);
  if (!found.ok()) return found.error();
  const auto plan = resolve(recipe, geometry, std::make_shared<const Constants>(std::move(*found)));
  if (!plan.ok()) return plan.error();
  return measure_quality(capture, **plan, n_threads);
}

}  // namespace kvant
