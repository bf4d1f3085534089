#include "calibrate/quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/page_size.h"
#include "calibrate/through_cache.h"
#include "recipe/recipe.h"

namespace kvant::quality_test {
namespace {

constexpr int kSize = 32, kTokens = 2 * kPageTokens, kQueries = 32;

// Returns a geometry of two layers with one KV head and two query heads each. The second layer has a sliding
// window.
Geometry geometry() {
  Geometry g;
  g.n_layers = 2;
  g.n_heads = 2;
  g.n_kv_heads = 1;
  g.head_dim = kSize;
  g.softmax_scale = 0.4F;
  g.trained_context = 1024;
  g.sliding_window = {0, 40};
  g.sink_logits = {3, -2, 1, 5};
  return g;
}

void fill(Capture& capture) {
  const Geometry& g = capture.geometry();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto row = [&] {
    std::vector<float> values(kSize);
    for (float& x : values) x = normal(random);
    return values;
  };
  for (int token = 0; token < kTokens; ++token) {
    for (int layer = 0; layer < g.n_layers; ++layer) {
      for (const Side side : kSides) capture.store(0, token, layer, 0, side, row().data());
      for (int head = 0; head < g.n_heads; ++head) capture.store_query(0, token, layer, head, row().data());
    }
  }
}

// Computes the attention output of token `query` in double precision.
std::vector<double> attention(const Geometry& g, int layer, int head, int query, const float* q,
                              const std::vector<float>& k, const std::vector<float>& v) {
  const int window = g.sliding_window[layer];
  const int first = window > 0 ? std::max(0, query + 1 - window) : 0;
  double sum = std::exp(static_cast<double>(g.sink_logits[layer * g.n_heads + head]));
  std::vector<double> output(kSize);
  for (int t = first; t <= query; ++t) {
    double score = 0;
    for (int c = 0; c < kSize; ++c) score += static_cast<double>(q[c]) * k[t * kSize + c];
    const double weight = std::exp(score * g.softmax_scale);
    sum += weight;
    for (int c = 0; c < kSize; ++c) output[c] += weight * v[t * kSize + c];
  }
  for (double& x : output) x /= sum;
  return output;
}

TEST(MeasureQuality, ComparesOutputsWithSinkLogitsInTheirWindows) {
  const Geometry g = geometry();
  const auto plan = resolve(parse_recipe("k=tok2g32,v=tok2g32").value(), g, nullptr).value();
  Capture capture(g, {.length = kTokens, .passages = 1});
  fill(capture);
  double difference = 0, energy = 0;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    std::vector<float> exact[2], got[2];
    for (const Side side : kSides) {
      const int s = static_cast<int>(side);
      const SidePlan& stored = plan->head(layer, 0).side(side);
      exact[s] = capture.passage(0, layer, 0, side);
      got[s] = through_cache(*stored.sealed, stored.transform, stored.context, plan->layers[layer].sink,
                             /*first_position=*/0, exact[s]);
    }
    for (int head = 0; head < g.n_heads; ++head) {
      const std::vector<float> queries = capture.passage_queries(0, layer, head);
      for (int t = kTokens - kQueries; t < kTokens; ++t) {
        const float* q = queries.data() + t * kSize;
        const auto right = attention(g, layer, head, t, q, exact[0], exact[1]);
        const auto output = attention(g, layer, head, t, q, got[0], got[1]);
        for (int c = 0; c < kSize; ++c) {
          difference += std::pow(output[c] - right[c], 2);
          energy += std::pow(right[c], 2);
        }
      }
    }
  }
  const double expected = difference / energy;
  EXPECT_GT(expected, 0.01);
  EXPECT_NEAR(measure_quality(capture, *plan, 2).output_error, expected, 1e-4 * expected);
}

}  // namespace
}  // namespace kvant::quality_test
