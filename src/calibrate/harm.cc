#include "calibrate/harm.h"

#include <algorithm>

#include "base/check.h"
#include "eval/engine_source.h"
#include "eval/logit_metrics.h"
#include "recipe/bit_allocation.h"
#include "recipe/plan.h"
#include "transform/transform.h"

namespace kvant {
namespace {

constexpr int kMostUnits = 256;
constexpr int kStepTokens = 512;
constexpr std::int64_t kMostLogitBytes = std::int64_t{256} << 20;

// The squared error of `format` on whole pages of `values` [n, d], behind `transform`.
double squared_error(const Format& format, const Transform& transform, const PageContext& context,
                     const std::vector<float>& values, int sink) {
  const int d = context.head_dim;
  const std::size_t page_size = static_cast<std::size_t>(kPageTokens) * d;
  std::vector<std::byte> page(format.page_bytes(d));
  double sum = 0;
  for (std::size_t first = 0; first + page_size <= values.size(); first += page_size) {
    std::vector<float> got(values.begin() + static_cast<std::ptrdiff_t>(first),
                           values.begin() + static_cast<std::ptrdiff_t>(first + page_size));
    TokenMask left_out;
    for (int token = 0; first == 0 && token < sink; ++token) left_out.set(token);
    transform.forward({got.data(), kPageTokens, d});
    format.encode(got.data(), left_out, context, page.data());
    format.decode(page.data(), kPageTokens, context, got.data());
    transform.inverse({got.data(), kPageTokens, d});
    for (std::size_t i = 0; i < page_size; ++i) {
      if (left_out.test(static_cast<int>(i) / d)) continue;
      const double difference = static_cast<double>(got[i]) - values[first + i];
      sum += difference * difference;
    }
  }
  return sum;
}

}  // namespace

std::vector<HarmUnit> harm_units(const Geometry& geometry) {
  const bool by_head = geometry.n_layers * geometry.n_kv_heads * 2 <= kMostUnits;
  const int together = by_head ? 1 : geometry.n_kv_heads;
  std::vector<HarmUnit> units;
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    for (int head = 0; head < geometry.n_kv_heads; head += together)
      for (const Side side : kSides) units.push_back({layer, head, together, side});
  }
  return units;
}

Recipe probe_recipe(const Recipe& recipe, const HarmUnit& unit, int head_dim) {
  Recipe probe;
  probe.name = fmt::format("{} in layer {} {}", probe_format(recipe, head_dim).name(), unit.layer,
                           side_name(unit.side));
  probe.sink = recipe.sink;
  const SideRecipe side{(unit.side == Side::key ? recipe.k : recipe.v).transforms,
                        probe_format(recipe, head_dim).name()};
  for (int head = unit.first_head; head < unit.first_head + unit.n_heads; ++head)
    probe.overrides.push_back({unit.side, unit.layer, unit.layer, head, side});
  return probe;
}

HarmProbe::HarmProbe(Engine& engine, AttentionBackend& backend, std::vector<std::int32_t> tokens,
                     int n_threads)
    : engine_(engine),
      backend_(backend),
      tokens_(std::move(tokens)),
      n_threads_(n_threads),
      n_scored_(static_cast<int>(
          std::clamp<std::int64_t>(kMostLogitBytes / (engine.n_vocab() * std::int64_t{sizeof(float)}), 1,
                                   std::max<std::int64_t>(1, std::ssize(tokens_) / 2)))) {}

Result<std::unique_ptr<HarmProbe>> HarmProbe::make(Engine& engine, AttentionBackend& backend,
                                                   std::vector<std::int32_t> tokens, int n_threads) {
  std::unique_ptr<HarmProbe> probe(new HarmProbe(engine, backend, std::move(tokens), n_threads));
  KVANT_RETURN_IF_ERROR(probe->predict(Recipe{}, nullptr, probe->unquantized_));
  return probe;
}

Status HarmProbe::predict(const Recipe& recipe, std::shared_ptr<const Constants> constants,
                          std::vector<float>& logits) {
  const auto plan = resolve(recipe, engine_.geometry(), std::move(constants));
  if (!plan.ok()) return plan.error();
  logits.resize(static_cast<std::size_t>(n_scored_) * engine_.n_vocab());
  const auto source = make_engine_source(label(recipe), engine_, backend_, *plan, kStepTokens);
  return source->step(tokens_, /*is_prompt=*/true, {logits.data(), n_scored_, engine_.n_vocab()});
}

Result<double> HarmProbe::divergence(const Recipe& recipe, std::shared_ptr<const Constants> constants) {
  KVANT_RETURN_IF_ERROR(predict(recipe, std::move(constants), quantized_));
  const int n_vocab = engine_.n_vocab();
  const std::vector<std::int32_t> targets(n_scored_, 0);  // the divergence doesn't depend on what follows
  LogitMetrics metrics;
  metrics.begin_chunk();
  KVANT_RETURN_IF_ERROR(metrics.add({unquantized_.data(), n_scored_, n_vocab},
                                    {quantized_.data(), n_scored_, n_vocab}, targets, n_threads_));
  return metrics.summary().kld_mean;
}

std::vector<double> error_ratios(const Capture& capture, const Recipe& recipe, const Constants& constants,
                                 int layer, int kv_head, Side side) {
  const int d = capture.geometry().head_dim;
  const PageContext context{d, HeadConstants{&constants, layer, kv_head, side}};
  const auto transform =
      Transform::make((side == Side::key ? recipe.k : recipe.v).transforms, d, context.constants);
  KVANT_CHECK(transform.ok(), "transforms that were just learned");
  const auto error_of = [&](const Format& format) {
    double sum = 0;
    for (int p = 0; p < capture.size().passages; ++p)
      sum +=
          squared_error(format, *transform, context, capture.passage(p, layer, kv_head, side), recipe.sink);
    return sum;
  };
  const double of_probe = error_of(probe_format(recipe, d));
  std::vector<double> ratios;
  for (const std::string& name : recipe.ladder)
    ratios.push_back(of_probe > 0 ? error_of(*find_format(name)) / of_probe : 0);
  return ratios;
}

}  // namespace kvant
