#include "eval/quality_guard.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "attention/step_memory.h"
#include "base/mix_bits.h"
#include "cache/page_counts.h"

namespace kvant {
namespace {

constexpr int kSealedTokens = 2 * kPageTokens;  // that are kept beside their sealed pages, at least
constexpr int kChecksOfAHead = 32;              // then the layer's next KV head is watched

// Of the newest tokens that a layer may hold unsealed, and those behind them.
int capacity(const Plan& plan, int layer) {
  return plan.layers[layer].window + kPageTokens + kSealedTokens;
}

// A number that looks random, for each pair.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  return mix_bits(a * kGoldenRatio64 + b);
}

}  // namespace

QualityGuard::QualityGuard(AttentionBackend& inner, const Plan& plan, const GuardSettings& settings)
    : BackendDecorator(inner), geometry_(plan.geometry), settings_(settings) {
  for (int layer = 0; layer < geometry_.n_layers; ++layer) {
    GuardedLayer found;
    found.kv_head = static_cast<int>(mixed(settings.seed, layer) % geometry_.kv_heads(layer));
    layers_.push_back({found, RecentRows(capacity(plan, layer), geometry_.dim(layer))});
  }
}

void QualityGuard::run_layer(Step& step, int layer, const LayerRows& rows, Team& team) {
  inner().run_layer(step, layer, rows, team);  // in the end of which the team's threads meet
  if (team.index() != 0 || !rows.has_kv()) return;
  KVANT_CHECK(step.slices().size() == 1, "one sequence is guarded");
  run_within_memory(step, [&] {
    Watch& watch = layers_[layer];
    keep(step, layer, rows, watch);
    if (step.slices()[0].is_prompt) return;
    if (due(layer, watch.steps++)) check(step, layer, rows, watch);
  });
}

void QualityGuard::keep(const Step& step, int layer, const LayerRows& rows, Watch& watch) const {
  watch.recent.go_to(step.first_token(0));
  const std::ptrdiff_t column = std::ptrdiff_t{watch.found.kv_head} * geometry_.dim(layer);
  for (int r = 0; r < rows.k.rows; ++r) watch.recent.add(rows.k.row(r) + column, rows.v.row(r) + column);
}

// One step of each run of `every`, at random, so that steps don't keep time with pages.
bool QualityGuard::due(int layer, std::int64_t step) const {
  const std::uint64_t run = step / settings_.every;
  return mixed(settings_.seed + layer + 1, run) % settings_.every ==
         static_cast<std::uint64_t>(step % settings_.every);
}

void QualityGuard::check(const Step& step, int layer, const LayerRows& rows, Watch& watch) const {
  const Plan& plan = step.plan();
  GuardedLayer& found = watch.found;
  const RecentRows& recent = watch.recent;
  const int sliding = plan.layers[layer].sliding_window;
  const int oldest = std::max(recent.first(), first_visible_token(recent.end() - 1, sliding));
  const int first = pages_for(oldest) * kPageTokens;
  if (first >= recent.end()) return;
  const HeadState& state = step.head(0, layer, found.kv_head);
  const RecentTokens tokens = recent_tokens(plan, layer, found.kv_head, state, recent, first);
  if (tokens.quantized == 0) return;
  const RecentError error = recent_error(plan, layer, found.kv_head, rows.q.row(rows.q.rows - 1), tokens);
  found.error.add(error.all);
  found.keys.add(error.keys);
  ++found.checks;
  if (++watch.checks_of_head < kChecksOfAHead || geometry_.kv_heads(layer) == 1) return;
  watch.checks_of_head = 0;
  found.kv_head = (found.kv_head + 1) % geometry_.kv_heads(layer);
  watch.recent.forget();
}

GuardReport QualityGuard::report() const {
  GuardReport report;
  report.every = settings_.every;
  double squares = 0;
  int checked = 0;
  for (const Watch& watch : layers_) {
    report.layers.push_back(watch.found);
    report.steps = std::max(report.steps, watch.steps);
    report.checks += watch.found.checks;
    report.bytes += watch.recent.bytes();
    if (watch.found.checks == 0) continue;
    squares += std::pow(watch.found.error.relative(), 2);
    ++checked;
  }
  if (checked == 0) return report;
  report.relative = std::sqrt(squares / checked);
  report.estimated_kld = kDivergenceOfSquaredError * squares / checked;
  return report;
}

void QualityGuard::fill_synthetic(int n_tokens, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> k(geometry_.head_dim), v(geometry_.head_dim);
  for (Watch& watch : layers_) {
    watch.recent.go_to(0);
    for (int token = 0; token < n_tokens; ++token) {
      if (token % kPageTokens == 0) {  // a row for each page will do
        for (float& x : k) x = normal(random);
        for (float& x : v) x = normal(random);
      }
      watch.recent.add(k.data(), v.data());
    }
  }
}

}  // namespace kvant
