#include "eval/quality_guard.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <random>
#include <utility>

#include "attention/step_memory.h"
#include "base/mix_bits.h"
#include "cache/device_sequence.h"
#include "cache/page_counts.h"

namespace kvant {
namespace {

// RecentRows keeps at least kSealedTokens tokens whose pages are already sealed.
constexpr int kSealedTokens = 2 * kPageTokens;
// After kChecksOfAHead checks of a head, the guard watches the layer's next KV head.
constexpr int kChecksOfAHead = 32;

// Returns how many tokens RecentRows must hold. RecentRows holds the newest tokens, which a layer may hold
// unsealed, and kSealedTokens tokens before them.
int capacity(const Plan& plan, int layer) {
  return plan.layers[layer].window + kPageTokens + kSealedTokens;
}

// Returns a pseudorandom number that depends only on the two arguments.
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
  // run_layer() ends with a barrier of the team's threads, so all threads have then finished the layer.
  inner().run_layer(step, layer, rows, team);
  if (team.index() != 0 || !rows.has_kv()) return;
  KVANT_CHECK(step.slices().size() == 1, "one sequence is guarded");
  run_within_memory(step, [&] {
    Watch& watch = layers_[layer];
    keep(step, layer, rows, watch);
    if (step.slices()[0].is_prompt || !due(layer, watch.steps++)) return;
    const auto first = first_compared(step.plan(), layer, watch.recent);
    if (!first) return;
    const auto list = step.pages(0).list_pages(layer, watch.found.kv_head, *first);
    if (!list.ok()) return step.fail(list.error());
    const int n_sealed = step.ledger(0, layer).end_sealed();
    check(step.plan(), layer, rows.q.row(rows.q.rows - 1),
          recent_tokens(step.plan(), layer, watch.found.kv_head, list->pages, n_sealed, watch.recent, *first),
          watch);
  });
}

// At the first layer of a step, the other thread starts to examine the copies of the previous step.
ShownRows QualityGuard::wants(const Step& step, int layer) {
  KVANT_CHECK(step.slices().size() == 1, "one sequence is guarded");
  // A failed step left incomplete copies.
  if (layer == 0 && copies_.size() < n_wanted_) copies_.clear();
  if (layer == 0) n_wanted_ = 0;
  if (layer == 0 && !copies_.empty() && join()) {
    // The deferred policy lets join() do the work if no thread is available.
    looking_ = std::async(std::launch::async | std::launch::deferred,
                          [this, all = std::exchange(copies_, {})] { return look_at_all(all); });
  }
  const PageLedger& ledger = step.ledger(0, layer);
  const ShownRows rest = ledger.end_sealed() > ledger.n_sealed() ? ShownRows::none : ShownRows::nothing;
  const bool checks = !step.slices()[0].is_prompt && due(layer, layers_[layer].steps++);
  const ShownRows wanted = checks ? ShownRows::queries : rest;
  if (wanted != ShownRows::nothing) ++n_wanted_;
  return wanted;
}

void QualityGuard::see(Step& step, int layer, const LayerRows& rows) {
  if (!join()) step.fail_out_of_memory();
  run_within_memory(step, [&] {
    copies_.push_back(std::make_unique<Copies>());
    Status status = gather(step, layer, rows, *copies_.back());
    if (status.ok() && copies_.size() == n_wanted_) status = download(step);
    if (!status.ok()) step.fail(status.error());
  });
  if (step.failed()) copies_.clear();
}

Status QualityGuard::download(const Step& step) {
  auto downloaded = std::make_shared<std::vector<std::byte>>();
  KVANT_RETURN_IF_ERROR(device_pages(step).download_gathered(*downloaded));
  for (const auto& copies : copies_) {
    copies->tail.take(downloaded);
    copies->cached.take(downloaded);
  }
  return {};
}

bool QualityGuard::join() {
  return !looking_.valid() || looking_.get();
}

// Copies the tail, including the step's tokens, before any page of the tail is sealed. A check also copies
// the cached pages of the tokens that the check may compare.
Status QualityGuard::gather(const Step& step, int layer, const LayerRows& rows, Copies& copies) const {
  const Plan& plan = step.plan();
  const PageLedger& ledger = step.ledger(0, layer);
  const int oldest = std::max(ledger.end() - capacity(plan, layer), 0);
  const DeviceSequence& sequence = device_sequence(step, 0);
  copies.layer = layer;
  copies.kv_head = layers_[layer].found.kv_head;
  copies.first_in_tail = std::max(ledger.n_sealed(), oldest / kPageTokens) * kPageTokens;
  copies.n_sealed = ledger.end_sealed();
  copies.sealed = ledger.end_sealed() > ledger.n_sealed();
  copies.plan = step.shared_plan();
  if (copies.sealed)
    KVANT_RETURN_IF_ERROR(
        copies.tail.gather(sequence, layer, copies.kv_head, copies.first_in_tail, ledger.n_sealed()));
  if (rows.q.data == nullptr) return {};
  const float* newest = rows.q.row(rows.q.rows - 1);
  copies.query.assign(newest, newest + rows.q.cols);
  return copies.cached.gather(sequence, layer, copies.kv_head, oldest, ledger.end_sealed());
}

void QualityGuard::look_at(Copies& copies) {
  Watch& watch = layers_[copies.layer];
  const Plan& plan = *copies.plan;
  DeviceHeadPages& with_tail = copies.sealed ? copies.tail : copies.cached;
  with_tail.unpack();
  watch.recent.go_to(copies.first_in_tail);
  const HeadPlan& head = plan.head(copies.layer, copies.kv_head);
  const std::ptrdiff_t d = geometry_.dim(copies.layer);
  for (const PageView& page : with_tail.pages()) {
    if (page.is_protected || page.first_token < copies.first_in_tail) continue;
    const std::vector<float> k = decoded_rows(page.k, head.k.transform, page.n_tokens),
                             v = decoded_rows(page.v, head.v.transform, page.n_tokens);
    for (int i = 0; i < page.n_tokens; ++i) watch.recent.add(k.data() + i * d, v.data() + i * d);
  }
  if (copies.query.empty()) return;
  const auto first = first_compared(plan, copies.layer, watch.recent);
  if (!first) return;
  if (copies.sealed) copies.cached.unpack();
  std::vector<PageView> pages;
  for (const PageView& page : copies.cached.pages()) {
    if (page.is_protected || page.first_token >= *first) pages.push_back(page);
  }
  check(plan, copies.layer, copies.query.data(),
        recent_tokens(plan, copies.layer, copies.kv_head, pages, copies.n_sealed, watch.recent, *first),
        watch);
}

bool QualityGuard::look_at_all(const AllCopies& all) {
  try {
    for (const auto& copies : all) look_at(*copies);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

void QualityGuard::keep(const Step& step, int layer, const LayerRows& rows, Watch& watch) const {
  watch.recent.go_to(step.first_token(0));
  const std::ptrdiff_t column = std::ptrdiff_t{watch.found.kv_head} * geometry_.dim(layer);
  for (int r = 0; r < rows.k.rows; ++r) watch.recent.add(rows.k.row(r) + column, rows.v.row(r) + column);
}

// Picks one random step in each run of settings_.every steps, because a fixed distance could coincide with
// page boundaries.
bool QualityGuard::due(int layer, std::int64_t step) const {
  const std::uint64_t run = step / settings_.every;
  return mixed(settings_.seed + layer + 1, run) % settings_.every ==
         static_cast<std::uint64_t>(step % settings_.every);
}

std::optional<int> QualityGuard::first_compared(const Plan& plan, int layer, const RecentRows& recent) const {
  const int sliding = plan.layers[layer].sliding_window;
  const int oldest = std::max(recent.first(), first_visible_token(recent.end() - 1, sliding));
  const int first = pages_for(oldest) * kPageTokens;
  if (first >= recent.end()) return {};
  return first;
}

void QualityGuard::check(const Plan& plan, int layer, const float* query, const RecentTokens& tokens,
                         Watch& watch) const {
  GuardedLayer& found = watch.found;
  if (tokens.quantized == 0) return;
  const RecentError error = recent_error(plan, layer, found.kv_head, query, tokens);
  found.error.add(error.all);
  found.keys.add(error.keys);
  ++found.checks;
  if (++watch.checks_of_head < kChecksOfAHead || geometry_.kv_heads(layer) == 1) return;
  watch.checks_of_head = 0;
  found.kv_head = (found.kv_head + 1) % geometry_.kv_heads(layer);
  watch.recent.forget();
}

GuardReport QualityGuard::report() {
  if (join()) look_at_all(std::exchange(copies_, {}));
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
      // One row per page is enough for a benchmark.
      if (token % kPageTokens == 0) {
        for (float& x : k) x = normal(random);
        for (float& x : v) x = normal(random);
      }
      watch.recent.add(k.data(), v.data());
    }
  }
}

}  // namespace kvant
