#include "eval/cache_size.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>

#include "cache/correction_state.h"
#include "cache/head_state.h"
#include "cache/schedule.h"

namespace kvant {
namespace {

// Sealed pages that are still held after the first n_tokens.
int held_pages(const Plan& plan, int layer, int n_tokens) {
  if (plan.layers[layer].evict == 1) return 0;
  const int sealed = pages_due(n_tokens, plan.layers[layer].window);
  const int sliding = plan.layers[layer].sliding_window;
  const int freed = sliding > 0 ? std::max(n_tokens - sliding + 1, 0) / kPageTokens : 0;
  return std::max(sealed - freed, 0);
}

int tail_pages(const Plan& plan, int layer, int n_tokens) {
  const int sealed = pages_due(n_tokens, plan.layers[layer].window);
  return (n_tokens - sealed * kPageTokens + kPageTokens - 1) / kPageTokens;
}

std::int64_t layer_bytes(const Plan& plan, int layer, int n_tokens) {
  const int d = plan.geometry.head_dim;
  const auto tail_page = static_cast<std::int64_t>(plan.tail->page_bytes(d));
  const bool any_sealed = pages_due(n_tokens, plan.layers[layer].window) > 0;
  const std::int64_t side_page =
      any_sealed && plan.layers[layer].sink > 0 ? tail_page / kPageTokens * kept_page_rows(plan, layer) : 0;
  std::int64_t bytes = 0;
  for (int head = 0; head < plan.geometry.n_kv_heads; ++head) {
    for (const Side side : kSides) {
      const auto page = static_cast<std::int64_t>(plan.head(layer, head).side(side).sealed->page_bytes(d));
      bytes += held_pages(plan, layer, n_tokens) * page + tail_pages(plan, layer, n_tokens) * tail_page +
               side_page;
    }
    if (any_sealed && plan.head(layer, head).corrected) bytes += correction_bytes(d);
  }
  return bytes;
}

// A number from a one-line file ("max" and missing files: 0).
std::int64_t number_in(const char* path) {
  std::int64_t value = 0;
  std::ifstream file(path);
  return file >> value ? value : 0;
}

}  // namespace

std::vector<std::int64_t> cache_bytes_by_layer(const Plan& plan, int n_tokens) {
  std::vector<std::int64_t> bytes(plan.geometry.n_layers);
  for (int layer = 0; layer < plan.geometry.n_layers; ++layer)
    bytes[layer] = layer_bytes(plan, layer, n_tokens);
  return bytes;
}

std::int64_t predicted_cache_bytes(const Plan& plan, int n_tokens) {
  const auto bytes = cache_bytes_by_layer(plan, n_tokens);
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

std::int64_t bf16_bytes(const Geometry& geometry, int n_tokens) {
  std::int64_t tokens = 0;  // summed over layers
  for (int layer = 0; layer < geometry.n_layers; ++layer) {
    tokens += geometry.slides(layer) ? std::min(n_tokens, geometry.sliding_window[layer]) : n_tokens;
  }
  return tokens * geometry.n_kv_heads * geometry.head_dim * 2 * 2;  // two sides of two bytes
}

std::int64_t available_memory_bytes() {
  std::int64_t available = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> available) break;
  }
  available *= 1024;
  const std::int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  if (limit > 0) available = std::min(available, limit);
  return available;
}

}  // namespace kvant
