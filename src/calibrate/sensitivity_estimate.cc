#include "calibrate/sensitivity_estimate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "calibrate/through_cache.h"
#include "format/page_metric.h"

namespace kvant {
namespace {

// One page of one head's K or V, with the derivative by it: [kPageTokens, d].
struct PageOfHead {
  MatrixView<const float> values, gradient;
  int sink = 0;  // tokens that are left out
};

// Where the errors of a page of K are shaped: into which basis errors are taken, and how they count there.
struct ShapedPage {
  const Transform& transform;
  ErrorMetric metric;
  double mean_weight = 1;  // of the directions

  // What error e counts, [d], where all directions together count as in e.e.
  double squared(std::vector<float> value, std::vector<float> stored) const {
    const int d = static_cast<int>(value.size());
    transform.forward({value.data(), 1, d});
    transform.forward({stored.data(), 1, d});
    for (int i = 0; i < d; ++i) stored[i] -= value[i];
    return metric.product(stored.data(), stored.data()) / mean_weight;
  }
};

std::optional<ShapedPage> shaped_page(const Transform& transform, const HeadConstants& constants, int d,
                                      int first_position) {
  auto metric = metric_of_page(constants, transform, d, first_position);
  if (!metric) return std::nullopt;
  double squares = 0;
  for (const FeedbackStep& step : metric->steps())
    for (const float v : step.directions) squares += static_cast<double>(v) * v;
  return ShapedPage{transform, std::move(*metric), 1 + squares / d};
}

std::vector<double> page_mean(const PageOfHead& page) {
  std::vector<double> mean(page.values.cols, 0.0);
  for (int t = page.sink; t < kPageTokens; ++t)
    for (int i = 0; i < page.values.cols; ++i)
      mean[i] += static_cast<double>(page.values.row(t)[i]) / (kPageTokens - page.sink);
  return mean;
}

// What one token's error does: (g . e)^2, on average over the directions of e, and g . e itself.
struct TokenCost {
  double mean = 0;
  double along = 0;
};

TokenCost token_cost(const float* value, const float* stored, const float* gradient,
                     const std::vector<double>& mean, const ShapedPage* metric) {
  const int d = static_cast<int>(mean.size());
  double gg = 0, ee = 0, rr = 0, gr = 0, er = 0, ge = 0;
  for (int i = 0; i < d; ++i) {
    const double g = gradient[i], e = static_cast<double>(stored[i]) - value[i], r = value[i] - mean[i];
    gg += g * g;
    ee += e * e;
    ge += g * e;
    rr += r * r;
    gr += g * r;
    er += e * r;
  }
  const double e_along = rr > 0 ? er * er / rr : 0, g_along = rr > 0 ? gr * gr / rr : 0;
  double across = ee - e_along;
  if (metric != nullptr && across > 0) {
    std::vector<float> rest(stored, stored + d);
    for (int i = 0; i < d && rr > 0; ++i) rest[i] -= static_cast<float>(er / rr * (value[i] - mean[i]));
    across = metric->squared({value, value + d}, std::move(rest));
  }
  if (rr == 0) return {gg * across / d, ge};
  return {g_along * e_along + (gg - g_along) * across / (d - 1), ge};
}

// Of one head's side with one format, over the tokens of a context.
struct PlaceCosts {
  double mean = 0;
  std::vector<double> along;  // [n_tokens]
};

// Adds page `first` / kPageTokens.
void add_page(const PageOfHead& page, int first, const std::vector<float>& stored, const ShapedPage* metric,
              PlaceCosts& costs) {
  const std::vector<double> mean = page_mean(page);
  for (int t = page.sink; t < kPageTokens; ++t) {
    const TokenCost cost =
        token_cost(page.values.row(t), stored.data() + static_cast<std::ptrdiff_t>(t) * page.values.cols,
                   page.gradient.row(t), mean, metric);
    costs.mean += cost.mean;
    costs.along[first + t] = cost.along;
  }
}

// Costs of each format of the ladder in one head's side.
std::vector<PlaceCosts> place_costs(const LayerGradient& state, const Recipe& recipe,
                                    const HeadConstants& constants, int n_pages) {
  const MatrixView<const float> values = state.stored(constants.kv_head, constants.side);
  const MatrixView<const float> gradient = state.sealed_gradient(constants.kv_head, constants.side);
  const PageContext context{values.cols, constants};
  const auto transform =
      Transform::make((constants.side == Side::key ? recipe.k : recipe.v).transforms, values.cols, constants);
  KVANT_CHECK(transform.ok(), "transforms that were just learned");
  std::vector<PlaceCosts> costs(recipe.ladder.size());
  for (PlaceCosts& c : costs) c.along.resize(static_cast<std::size_t>(n_pages) * kPageTokens);
  for (int first = 0; first < n_pages * kPageTokens; first += kPageTokens) {
    const PageOfHead page{values.slice(first, kPageTokens), gradient.slice(first, kPageTokens),
                          first == 0 ? recipe.sink : 0};
    const std::optional<ShapedPage> metric = shaped_page(*transform, constants, values.cols, first);
    std::vector<float> exact;
    for (int t = 0; t < kPageTokens; ++t)
      exact.insert(exact.end(), page.values.row(t), page.values.row(t) + values.cols);
    for (std::size_t f = 0; f < costs.size(); ++f) {
      const Format& format = *find_format(recipe.ladder[f]);
      const bool shaped = metric && format.shapes_errors();
      add_page(page, first, through_cache(format, *transform, context, page.sink, first, exact),
               shaped ? &*metric : nullptr, costs[f]);
    }
  }
  return costs;
}

// (sum of g . e)^2 over the tokens that are the same word, summed over words, and the sum of (g . e)^2.
struct Coherence {
  double together = 0, alone = 0;
};

Coherence coherence(std::span<const std::int32_t> tokens, const PlaceCosts& costs) {
  Coherence sums;
  std::map<std::int32_t, double> of_word;
  for (std::size_t t = 0; t < costs.along.size(); ++t) {
    of_word[tokens[t]] += costs.along[t];
    sums.alone += costs.along[t] * costs.along[t];
  }
  for (const auto& [word, sum] : of_word) sums.together += sum * sum;
  return sums;
}

// By how much the errors of a word's occurrences add up, in one side of a layer: formats count alike, heads
// by what their errors do.
double repetition(std::span<const std::int32_t> tokens, std::span<const std::vector<PlaceCosts>> heads) {
  double sum = 0;
  const std::size_t n_formats = heads.front().size();
  for (std::size_t f = 0; f < n_formats; ++f) {
    Coherence all;
    for (const std::vector<PlaceCosts>& head : heads) {
      const Coherence one = coherence(tokens, head[f]);
      all.together += one.together;
      all.alone += one.alone;
    }
    sum += all.alone > 0 ? all.together / all.alone : 1;
  }
  return std::max(1.0, sum / static_cast<double>(n_formats));
}

}  // namespace

Result<Sensitivities> estimate_sensitivities(DifferentiableModel& model, const Geometry& geometry,
                                             const Recipe& recipe, const Constants& known,
                                             const GradientRequest& request) {
  const int n = static_cast<int>(request.tokens.size());
  const int n_pages = (n - 1) / kPageTokens;  // that any token reads sealed
  const double of_each = 0.5 / (n - request.first_scored);
  Sensitivities all(static_cast<std::size_t>(geometry.n_all_kv_heads()) * 2);
  const auto done = model_gradient(model, request, [&](int layer, const LayerGradient& state) {
    const int n_heads = geometry.kv_heads(layer);
    std::vector<std::vector<PlaceCosts>> costs(static_cast<std::size_t>(n_heads) * 2);  // K's heads, then V's
    run_team(request.n_threads, [&](Team& team) {
      team.for_each(n_heads * 2, [&](int i) {
        costs[i] = place_costs(state, recipe, {&known, layer, i % n_heads, kSides[i / n_heads]}, n_pages);
      });
    });
    for (const Side side : kSides) {
      const auto heads = std::span(costs).subspan(static_cast<std::size_t>(side) * n_heads, n_heads);
      const double factor = of_each * repetition(request.tokens, heads);
      for (int head = 0; head < n_heads; ++head)
        for (const PlaceCosts& cost : heads[head])
          all[place_of(geometry, layer, head, side)].push_back(static_cast<float>(factor * cost.mean));
    }
  });
  if (!done.ok()) return done.error();
  return all;
}

void add_floor(Sensitivities& sensitivities) {
  constexpr double kShare = 0.1;  // of the mean
  const std::size_t n_formats = sensitivities.front().size();
  for (std::size_t f = 0; f < n_formats; ++f) {
    double sum = 0;
    for (const std::vector<float>& place : sensitivities) sum += place[f];
    const auto floor = static_cast<float>(kShare * sum / static_cast<double>(sensitivities.size()));
    for (std::vector<float>& place : sensitivities) place[f] += floor;
  }
}

}  // namespace kvant
