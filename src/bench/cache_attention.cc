#include "bench/cache_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "bench/synthetic_constants.h"
#include "cache/page_counts.h"
#include "cache/synthetic_sequence.h"
#include "eval/cache_size.h"

namespace kvant {
namespace {

constexpr std::uint64_t kSeed = 1;

Geometry geometry_of(const AttentionHeads& shape, int n_layers) {
  Geometry geometry;
  geometry.model = "the benchmark";
  geometry.n_layers = n_layers;
  geometry.n_heads = shape.n_heads;
  geometry.n_kv_heads = shape.n_kv_heads;
  geometry.head_dim = shape.head_dim;
  geometry.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  geometry.sliding_window.assign(n_layers, 0);
  return geometry;
}

// Returns how many layers a model needs. The last layer that the recipe names must exist, and one layer must
// lie between the edges that the recipe names.
int layers_named(const Recipe& recipe) {
  int last = std::max({0, recipe.correction_layers.first, recipe.correction_layers.last});
  for (const SideOverride& override : recipe.overrides)
    last = std::max(last, override.first_layer < 0 ? 2 * (override.last_layer + 1) : override.last_layer);
  return last + 1;
}

Result<std::shared_ptr<const Plan>> plan_of_layers(const Recipe& recipe, const AttentionHeads& shape,
                                                   int n_layers, PageOrder order) {
  const Geometry geometry = geometry_of(shape, n_layers);
  KVANT_RETURN_IF_ERROR(check_recipe(recipe, geometry));
  return resolve(recipe, geometry, synthetic_constants(recipe, geometry), order);
}

}  // namespace

Result<std::shared_ptr<const Plan>> plan_without_model(const Recipe& recipe, const AttentionHeads& shape,
                                                       int context, std::int64_t working_set,
                                                       PageOrder order) {
  KVANT_RETURN_IF_ERROR(check_shape(shape));
  const int least = layers_named(recipe);
  auto plan = plan_of_layers(recipe, shape, least, order);
  if (!plan.ok()) return plan;
  const double layer_bytes = static_cast<double>(predicted_cache_bytes(**plan, context)) / least;
  const int n_layers = rotation_layers(layer_bytes, working_set, least);
  return n_layers == least ? plan : plan_of_layers(recipe, shape, n_layers, order);
}

CacheAttention::CacheAttention(std::shared_ptr<const Plan> plan, std::unique_ptr<AttentionBackend> backend,
                               int n_threads)
    : cache_(std::move(plan), /*byte_limit=*/0),
      sequence_(cache_.add()),
      backend_(std::move(backend)),
      n_threads_(n_threads) {
  const Geometry& g = cache_.plan().geometry;
  values_ = random_attention_values({g.n_heads, g.n_kv_heads, g.head_dim}, kSeed);
  output_.resize(values_.q.size());
}

Result<std::unique_ptr<CacheAttention>> CacheAttention::make(std::shared_ptr<const Plan> plan,
                                                             std::unique_ptr<AttentionBackend> backend,
                                                             int context, int n_threads) {
  std::unique_ptr<CacheAttention> made(new CacheAttention(std::move(plan), std::move(backend), n_threads));
  KVANT_RETURN_IF_ERROR(fill_synthetic(made->cache_, made->sequence_, context, kSeed));
  return made;
}

Result<double> CacheAttention::layer_seconds() {
  using Clock = std::chrono::steady_clock;
  auto step = cache_.reserve({{sequence_, 1, /*is_prompt=*/false}});
  if (!step.ok()) return step.error();
  const Geometry& g = cache_.plan().geometry;
  const int q_size = g.n_heads * g.head_dim, kv_size = g.n_kv_heads * g.head_dim;
  const LayerRows rows{{values_.q.data(), 1, q_size},
                       {values_.k.data(), 1, kv_size},
                       {values_.v.data(), 1, kv_size},
                       {output_.data(), 1, q_size}};
  double seconds = 0;
  run_team(n_threads_, [&](Team& team) {
    // Every thread has started after this barrier, so the measured time does not include the start of
    // threads.
    team.barrier();
    const auto start = Clock::now();
    for (int layer = 0; layer < g.n_layers; ++layer) backend_->run_layer(**step, layer, rows, team);
    team.barrier();
    if (team.index() == 0) seconds = std::chrono::duration<double>(Clock::now() - start).count();
  });
  if ((*step)->failed()) return (*step)->commit().error();
  (*step)->abort();
  return seconds / g.n_layers;
}

std::vector<std::string> CacheAttention::kernels() const {
  const Plan& plan = cache_.plan();
  std::set<std::string> names;
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer) {
    for (int head = 0; head < plan.geometry.n_kv_heads; ++head) {
      for (const Side side : kSides) names.insert(backend_->kernel(plan, layer, head, side).name);
    }
  }
  return {names.begin(), names.end()};
}

double CacheAttention::bits() const {
  return mean_bits(cache_.plan(), cache_.length(sequence_), cache_.bytes(sequence_)).all;
}

double CacheAttention::layer_bytes() const {
  const CacheBytes bytes = cache_.bytes(sequence_);
  // Attention reads unsealed pages only as far as they are filled.
  const int unsealed = page_counts(cache_.length(sequence_), cache_.plan().layers[0].window).tail_tokens;
  const int room = tail_room(unsealed);
  const double tail = room == 0 ? 0 : static_cast<double>(bytes.tail) * unsealed / room;
  return (static_cast<double>(bytes.sealed + bytes.protected_tokens + bytes.sink) + tail) / n_layers();
}

}  // namespace kvant
