// What tests of the cache and of attention share: small geometries, deterministic values, steps without
// attention.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/schedule.h"

namespace kvant::testing {

inline Geometry small_geometry(int head_dim = 64, int n_heads = 6, int n_kv_heads = 2, int n_layers = 2) {
  Geometry g;
  g.model = "test";
  g.n_layers = n_layers;
  g.n_heads = n_heads;
  g.n_kv_heads = n_kv_heads;
  g.head_dim = head_dim;
  g.score_scale = 0.125F;
  g.trained_context = 4096;
  g.sliding_window.assign(n_layers, 0);
  return g;
}

inline std::shared_ptr<const Plan> plan_for(const std::string& recipe, const Geometry& geometry) {
  const Result<Recipe> parsed = parse_recipe(recipe);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
  const Result<std::shared_ptr<const Plan>> plan = resolve(*parsed, geometry, nullptr);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return *plan;
}

// Values of one token's row: a function of (layer, head, side, token) alone, with a few outlier channels.
inline std::vector<float> token_values(int layer, int head, int side, int token, int d) {
  std::mt19937 random(token * 1009 + layer * 101 + head * 11 + side);
  std::normal_distribution<float> normal;
  std::vector<float> row(d);
  for (int c = 0; c < d; ++c) row[c] = normal(random) * (c % 16 == 3 ? 4.0F : 1.0F);
  return row;
}

// Runs one layer's append and seal of a step, head by head, without attention.
inline void run_layer_without_attention(Step& step, int layer) {
  const Plan& plan = step.plan();
  const int d = plan.geometry.head_dim;
  std::vector<float> scratch;
  for (int s = 0; s < static_cast<int>(step.slices().size()); ++s) {
    const StepSlice& slice = step.slices()[s];
    for (int h = 0; h < plan.geometry.n_kv_heads; ++h) {
      HeadState& head = step.head(s, layer, h);
      const int window = plan.layers[layer].window;
      if (const int point = seal_point_before(step.first_token(s), slice.is_prompt); point >= 0) {
        head.seal_until(pages_due(point, window), scratch);
      }
      for (const Tile& tile :
           schedule(step.first_token(s), slice.n_tokens, slice.is_prompt, plan.recipe.prefill)) {
        for (int t = tile.append_first; t < tile.append_end; ++t) {
          std::vector<float> k = token_values(layer, h, 0, t, d), v = token_values(layer, h, 1, t, d);
          plan.head(layer, h).k.transform.forward({k.data(), 1, d});
          plan.head(layer, h).v.transform.forward({v.data(), 1, d});
          head.append({k.data(), 1, d}, {v.data(), 1, d});
        }
        if (tile.seal_point >= 0) head.seal_until(pages_due(tile.seal_point, window), scratch);
      }
    }
  }
}

// Appends n tokens to a sequence in one step.
inline Status append_tokens(Cache& cache, SequenceId sequence, int n, bool is_prompt = true) {
  auto step = cache.reserve({{sequence, n, is_prompt}});
  if (!step.ok()) return step.error();
  for (int layer = 0; layer < cache.plan().geometry.n_layers; ++layer)
    run_layer_without_attention(**step, layer);
  return (*step)->commit();
}

// All that a sequence holds: every head's pages with their bytes, masks and token ranges.
inline std::string contents(const Cache& cache, SequenceId sequence) {
  const Geometry& g = cache.plan().geometry;
  std::string all = "length " + std::to_string(cache.length(sequence));
  std::vector<PageView> pages;
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const HeadState& head = cache.head(sequence, layer, h);
      all +=
          "\nsealed " + std::to_string(head.n_sealed()) + " from " + std::to_string(head.first_page()) + "\n";
      head.list_pages(0, pages);
      for (const PageView& page : pages) {
        all += std::to_string(page.first_token) + "+" + std::to_string(page.n_tokens) +
               (page.kept ? "k" : " ") + std::to_string(page.masked.words[0]) + "," +
               std::to_string(page.masked.words[1]) + ":";
        for (const PageSide& side : {page.k, page.v}) {
          // Of an unsealed page only the rows in use are defined.
          std::size_t bytes = side.format->page_bytes(g.head_dim);
          if (page.n_tokens < kPageTokens) bytes = bytes / kPageTokens * page.n_tokens;
          all.append(reinterpret_cast<const char*>(side.bytes), bytes);
        }
      }
    }
  }
  return all;
}

}  // namespace kvant::testing
