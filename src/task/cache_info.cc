#include "task/cache_info.h"

#include <algorithm>
#include <cmath>

#include "eval/report_json.h"

namespace kvant {
namespace {

// Returns the largest number of tokens at which `batch` sequences together fit into `bytes`.
int max_tokens(const PlacedPlan& plan, int batch, std::int64_t bytes) {
  int fits = 0;
  for (int step = 1 << 30; step > 0; step /= 2) {
    const std::int64_t tokens = std::int64_t{fits} + step;
    if (tokens > INT32_MAX - kPageTokens) continue;
    if (largest_batch_bytes(plan, static_cast<int>(tokens), {batch, kUsualStep}) <= bytes)
      fits = static_cast<int>(tokens);
  }
  return fits;
}

}  // namespace

Result<CacheInfo> cache_info(const Session& session, const Recipe& recipe, int context, int batch) {
  const Geometry& g = session.engine().geometry();
  auto known = session.known_constants(recipe);
  if (!known.ok()) return known.error();
  auto preview = session.preview(recipe, std::move(known).value());
  if (!preview.ok()) return preview.error();
  CacheInfo info;
  info.preview = std::move(preview).value();
  const Plan& plan = *info.preview.plan;
  info.report = session.report(info.preview);
  info.context = context > 0 ? context : std::max(g.trained_context, kPageTokens);
  info.batch = batch;
  info.available = std::max<std::int64_t>(session.free_cache_bytes(), 0);
  info.layers = cache_bytes_by_layer(plan, info.context);
  info.cache = predicted_cache_bytes(plan, info.context);
  info.bits = mean_bits(plan, info.context);
  info.constants = constant_size(plan, info.context);
  info.bf16 = bf16_bytes(g, info.context);
  for (int layer = 0; layer < g.n_layers; ++layer) {
    // A layer frees a page for each new page once the context exceeds its window.
    const int window = plan.layers[layer].sliding_window;
    if (window > 0 && info.context >= window) {
      ++info.n_full_layers;
      continue;
    }
    for (int kv_head = 0; kv_head < g.kv_heads(layer); ++kv_head) {
      const HeadPlan& head = plan.head(layer, kv_head);
      for (const Side side : kSides)
        info.token +=
            static_cast<double>(head.side(side).sealed->page_bytes(head.side(side).context.head_dim)) /
            kPageTokens;
    }
  }
  info.max_tokens = max_tokens(info.preview.plan, batch, info.available);
  return info;
}

nlohmann::ordered_json info_to_json(const Session& session, const CacheInfo& info, const std::string& model) {
  const Geometry& g = session.engine().geometry();
  nlohmann::ordered_json kv_heads = g.n_kv_heads, head_dim = g.head_dim;
  if (g.heads_differ()) {
    kv_heads = head_dim = nlohmann::ordered_json::array();
    for (int layer = 0; layer < g.n_layers; ++layer) {
      kv_heads.push_back(g.kv_heads(layer));
      head_dim.push_back(g.dim(layer));
    }
  }
  return {{"schema", "kvant.info/2"},
          {"model", model},
          {"description", session.engine().description()},
          {"layers", g.n_layers},
          {"recurrent_layers", g.n_recurrent_layers},
          {"recurrent_bytes", g.recurrent_bytes()},
          {"heads", g.n_heads},
          {"kv_heads", kv_heads},
          {"head_dim", head_dim},
          {"trained_context", g.trained_context},
          {"weight_bytes", session.engine().weight_bytes()},
          {"host_weight_bytes", session.engine().host_weight_bytes()},
          {"recipe", info.preview.plan->name},
          {"asked", label(info.preview.plan->asked)},
          {"context", info.context},
          {"batch", info.batch},
          {"bytes_per_token", info.token},
          {"cache_bytes", info.cache},
          {"cache_bytes_bf16", info.bf16},
          {"cache_bytes_by_layer", info.layers},
          {"bits_sealed", std::isfinite(info.bits.sealed) ? nlohmann::ordered_json(info.bits.sealed)
                                                          : nlohmann::ordered_json(nullptr)},
          {"bits_all", info.bits.all},
          {"constant_bytes", info.constants.bytes},
          {"constant_bits", info.constants.bits},
          {"available_bytes", info.available},
          {"max_tokens", info.max_tokens},
          {"plan", plan_to_json(info.report)}};
}

}  // namespace kvant
