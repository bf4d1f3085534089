#include "attention/output_error.h"

#include <cmath>

#include "attention/step_memory.h"

namespace kvant {
namespace {

// Returns what `now` counts for a layer in addition to `before`, which may not have counted that layer yet.
SkipCount since(const std::vector<SkipCount>& before, const std::vector<SkipCount>& now, int layer) {
  const auto of = [&](const std::vector<SkipCount>& counts) {
    return layer < static_cast<int>(counts.size()) ? counts[layer] : SkipCount{};
  };
  const SkipCount a = of(before), b = of(now);
  return {b.seen - a.seen, b.skipped - a.skipped, b.queries - a.queries, b.mass - a.mass};
}

// Compares columns [first, first + n) of the rows from first_row on.
OutputError compare(const MatrixView<const float>& exact, const MatrixView<const float>& got, int first_row,
                    int first, int n) {
  OutputError error;
  for (int r = first_row; r < exact.rows; ++r) {
    for (int c = first; c < first + n; ++c) {
      const double right = exact.row(r)[c], difference = got.row(r)[c] - right;
      error.difference += difference * difference;
      error.energy += right * right;
    }
  }
  error.values = std::int64_t{exact.rows - first_row} * n;
  return error;
}

bool protects(const Plan& plan, int layer) {
  return plan.layers[layer].protect > 0;
}

}  // namespace

double OutputError::mse() const {
  return values > 0 ? difference / static_cast<double>(values) : 0;
}
double OutputError::relative() const {
  return energy > 0 ? std::sqrt(difference / energy) : 0;
}

OutputError LayerEffects::of_layer(int layer) const {
  OutputError sum;
  for (int head = 0; head < n_heads; ++head) sum.add(errors[layer * n_heads + head]);
  return sum;
}
OutputError LayerEffects::total() const {
  OutputError sum;
  for (const OutputError& error : errors) sum.add(error);
  return sum;
}

void OutputErrorBackend::add(PlacedPlan plan, AttentionBackend& backend) {
  const Geometry& g = plan->geometry;
  Shadow shadow;
  shadow.backend = &backend;
  shadow.effects.n_layers = g.n_layers;
  shadow.effects.n_heads = g.n_heads;
  shadow.effects.errors.resize(static_cast<std::size_t>(g.n_layers) * g.n_heads);
  shadow.cache = std::make_unique<Cache>(std::move(plan), /*byte_limit=*/0);
  shadow.sequence = shadow.cache->add();
  shadows_.push_back(std::move(shadow));
}

void OutputErrorBackend::begin() {
  for (Shadow& shadow : shadows_) {
    shadow.cache->free(shadow.sequence);
    shadow.sequence = shadow.cache->add();
  }
}

Status OutputErrorBackend::reserve(int n_tokens, bool is_prompt, int first_measured) {
  n_tokens_ = n_tokens;
  first_measured_ = first_measured;
  for (Shadow& shadow : shadows_) {
    auto step = shadow.cache->reserve({{shadow.sequence, n_tokens, is_prompt}});
    if (!step.ok()) return step.error();
    shadow.step = std::move(step).value();
    const Geometry& g = shadow.cache->plan().geometry;
    out_.resize(static_cast<std::size_t>(n_tokens) * g.n_heads * g.head_dim);
    head_coverage_.resize(g.n_kv_heads);
  }
  return {};
}

Status OutputErrorBackend::commit() {
  for (Shadow& shadow : shadows_) {
    const Status status = shadow.step->commit();
    shadow.step.reset();
    if (!status.ok()) return error("{}: {}", label(shadow.cache->plan().recipe), status.error().message);
  }
  return {};
}

void OutputErrorBackend::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  KVANT_CHECK(step.slices().size() == 1, "output errors are measured one sequence at a time");
  inner().run_layer(step, layer, rows, team);
  team.barrier();
  for (Shadow& shadow : shadows_) run_shadow(shadow, step, layer, rows, team);
}

bool OutputErrorBackend::measures_mass(const Shadow& shadow, const Step& step, int layer) const {
  const bool in_one_page = step.first_token(0) % kPageTokens + n_tokens_ <= kPageTokens;
  return first_measured_ == 0 && in_one_page && protects(shadow.cache->plan(), layer);
}

void OutputErrorBackend::compare_heads(Shadow& shadow, int layer, const LayerRows& rows, int head) {
  const int d = shadow.cache->plan().geometry.dim(layer);
  const MatrixView<const float> out(out_.data(), rows.out.rows, rows.out.cols);
  shadow.effects.errors[layer * shadow.effects.n_heads + head].add(
      compare(rows.out, out, first_measured_, head * d, d));
}

// A device does not count some effects, which then stay empty.
void OutputErrorBackend::run_shadow(Shadow& shadow, const Step& step, int layer, const LayerRows& rows,
                                    Team& team) {
  LayerEffects& effects = shadow.effects;
  if (measures_mass(shadow, step, layer)) measure_mass(shadow, step, layer, rows, team);
  const bool skips = first_measured_ == 0 && shadow.cache->plan().recipe.skip > 0;
  if (skips && team.index() == 0) skipped_ = shadow.backend->skip_counts();
  team.barrier();
  const MatrixView<float> out(out_.data(), rows.out.rows, rows.out.cols);
  shadow.backend->run_layer(*shadow.step, layer, {rows.q, rows.k, rows.v, out}, team);
  team.barrier();
  if (skips && team.index() == 0) {
    const std::vector<SkipCount> now = shadow.backend->skip_counts();
    effects.skips.resize(now.empty() ? 0 : effects.n_layers);
    if (!now.empty()) effects.skips[layer].add(since(skipped_, now, layer));
  }
  if (first_measured_ == n_tokens_) return;
  team.for_each(effects.n_heads, [&](int head) { compare_heads(shadow, layer, rows, head); });
}

// Measures the shadow as it is before the step, because its queries see no page that the step itself seals.
// One thread lists the pages, because a device copies them.
void OutputErrorBackend::measure_mass(Shadow& shadow, const Step& step, int layer, const LayerRows& rows,
                                      Team& team) {
  const int n_heads = step.plan().geometry.kv_heads(layer);
  const int first_unsealed = shadow.step->ledger(0, layer).n_sealed() * kPageTokens;
  team.once([&] {
    run_within_memory(*shadow.step, [&] {
      head_pages_.clear();
      for (int kv_head = 0; kv_head < n_heads; ++kv_head) {
        auto pages = step.pages(0).list_pages(layer, kv_head, /*first_visible=*/0);
        if (!pages.ok()) return shadow.step->fail(pages.error());
        head_pages_.push_back(std::move(pages).value());
      }
    });
  });
  team.for_each(n_heads, [&](int kv_head) {
    run_within_memory(*shadow.step, [&] {
      head_coverage_[kv_head] = measure_coverage(
          step.plan(), layer, kv_head, rows.q, step.first_token(0), head_pages_[kv_head].pages,
          {first_unsealed, shadow.step->pages(0).protected_tokens(layer, kv_head)});
    });
  });
  if (team.index() != 0 || shadow.step->failed()) return;
  shadow.effects.coverage.resize(shadow.effects.n_layers);
  for (int head = 0; head < n_heads; ++head) shadow.effects.coverage[layer].add(head_coverage_[head]);
}

ShownRows OutputErrorBackend::wants(const Step& step, int /*layer*/) {
  KVANT_CHECK(step.slices().size() == 1, "output errors are measured one sequence at a time");
  return ShownRows::outputs;
}

void OutputErrorBackend::see(Step& step, int layer, const LayerRows& rows) {
  run_within_memory(step, [&] {
    run_team(1, [&](Team& team) {
      for (Shadow& shadow : shadows_) run_shadow(shadow, step, layer, rows, team);
    });
  });
}

}  // namespace kvant
