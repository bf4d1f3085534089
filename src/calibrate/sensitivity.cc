#include "calibrate/sensitivity.h"

#include <algorithm>

#include "base/check.h"
#include "calibrate/scored_predictions.h"
#include "calibrate/through_cache.h"
#include "eval/engine_source.h"
#include "format/page_metric.h"
#include "recipe/bit_allocation.h"
#include "recipe/plan.h"
#include "transform/transform.h"

namespace kvant {
namespace {

constexpr int kMaxUnits = 256;
constexpr int kStepTokens = 512;

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return sum;
}

// StoredError computes the error of stored tokens in the measure that the format's encoder minimizes.
class StoredError {
 public:
  StoredError(const Transform& transform, const PageContext& context)
      : transform_(transform), d_(context.head_dim), constants_(context.constants) {}

  double operator()(const Format& format, int first_position, const std::vector<float>& exact,
                    const std::vector<float>& stored) const {
    if (!format.shapes_errors() || constants_.find(kPageMetric).empty())
      return squared_distance(exact, stored);
    std::vector<float> errors = encoded(stored), origin = encoded(exact);
    for (std::size_t i = 0; i < errors.size(); ++i) errors[i] -= origin[i];
    const int n = static_cast<int>(errors.size()) / d_;
    double sum = 0;
    for (int first = 0; first < n; first += kPageTokens) {
      const auto metric = metric_of_page(constants_, transform_, d_, first_position + first);
      for (int t = first; t < std::min(first + kPageTokens, n); ++t) {
        const float* error = errors.data() + static_cast<std::ptrdiff_t>(t) * d_;
        sum += metric->product(error, error);
      }
    }
    return sum;
  }

 private:
  std::vector<float> encoded(std::vector<float> values) const {
    transform_.forward({values.data(), static_cast<int>(values.size()) / d_, d_});
    return values;
  }

  const Transform& transform_;
  int d_;
  HeadConstants constants_;
};

}  // namespace

std::vector<SensitivityUnit> sensitivity_units(const Geometry& geometry) {
  const bool by_head = geometry.n_all_kv_heads() * 2 <= kMaxUnits;
  std::vector<SensitivityUnit> units;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    const int together = by_head ? 1 : geometry.kv_heads(layer);
    for (int head = 0; head < geometry.kv_heads(layer); head += together)
      for (const Side side : kSides) units.push_back({layer, head, together, side});
  }
  return units;
}

Recipe probe_recipe(const Recipe& recipe, const SensitivityUnit& unit, int head_dim,
                    const std::string& rest) {
  Recipe probe;
  probe.k.format = probe.v.format = rest;
  probe.name = fmt::format("{} in layer {} {}", probe_format(recipe, head_dim).name(), unit.layer,
                           side_name(unit.side));
  probe.sink = recipe.sink;
  probe.encode = recipe.encode;
  const SideRecipe side{(unit.side == Side::key ? recipe.k : recipe.v).transforms,
                        probe_format(recipe, head_dim).name()};
  for (int head = unit.first_head; head < unit.first_head + unit.n_heads; ++head)
    probe.overrides.push_back({unit.side, unit.layer, unit.layer, head, side});
  return probe;
}

SensitivityProbe::SensitivityProbe(Engine& engine, AttentionBackend& backend,
                                   std::vector<std::int32_t> tokens, int n_threads)
    : engine_(engine),
      backend_(backend),
      tokens_(std::move(tokens)),
      n_threads_(n_threads),
      n_scored_(n_scored_predictions(tokens_.size(), engine.n_vocab())) {}

Result<std::unique_ptr<SensitivityProbe>> SensitivityProbe::make(Engine& engine, AttentionBackend& backend,
                                                                 std::vector<std::int32_t> tokens,
                                                                 int n_threads, const Recipe& base) {
  std::unique_ptr<SensitivityProbe> probe(
      new SensitivityProbe(engine, backend, std::move(tokens), n_threads));
  KVANT_RETURN_IF_ERROR(probe->predict(base, nullptr, probe->expected_));
  return probe;
}

Status SensitivityProbe::predict(const Recipe& recipe, std::shared_ptr<const Constants> constants,
                                 std::vector<float>& logits) {
  const auto resolved = resolve(recipe, engine_.geometry(), std::move(constants));
  if (!resolved.ok()) return resolved.error();
  const auto plan = backend_.place(*resolved);
  if (!plan.ok()) return plan.error();
  logits.resize(static_cast<std::size_t>(n_scored_) * engine_.n_vocab());
  const auto source = make_engine_source(label(recipe), engine_, backend_, *plan, kStepTokens);
  return source->step(tokens_, /*is_prompt=*/true, {logits.data(), n_scored_, engine_.n_vocab()});
}

Result<double> SensitivityProbe::divergence(const Recipe& recipe,
                                            std::shared_ptr<const Constants> constants) {
  KVANT_RETURN_IF_ERROR(predict(recipe, std::move(constants), got_));
  return mean_divergence(expected_, got_, engine_.n_vocab(), n_threads_);
}

std::vector<double> error_ratios(const Capture& capture, const Recipe& recipe, const Constants& constants,
                                 int layer, int kv_head, Side side) {
  const int d = capture.geometry().dim(layer);
  const PageContext context{d, HeadConstants{&constants, layer, kv_head, side}};
  const auto transform =
      Transform::make((side == Side::key ? recipe.k : recipe.v).transforms, d, context.constants);
  KVANT_CHECK(transform.ok(), "transforms that were just learned");
  const StoredError error_of(*transform, context);
  std::vector<double> errors(recipe.ladder.size(), 0.0);
  double of_probe = 0;
  for (int p = 0; p < capture.size().passages; ++p) {
    std::vector<float> exact = capture.passage(p, layer, kv_head, side);
    exact.resize(static_cast<std::size_t>(capture.size().length / kPageTokens) * kPageTokens * d);
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const Format& format = *find_format(recipe.ladder[i]);
      const int position = capture.passage_position(p);
      errors[i] += error_of(format, position, exact,
                            through_cache(format, *transform, context, recipe.sink, position, exact));
    }
  }
  for (std::size_t i = 0; i < errors.size(); ++i)
    if (recipe.ladder[i] == probe_format(recipe, d).name()) of_probe = errors[i];
  std::vector<double> ratios;
  for (const double error : errors) ratios.push_back(of_probe > 0 ? error / of_probe : 0);
  return ratios;
}

}  // namespace kvant
