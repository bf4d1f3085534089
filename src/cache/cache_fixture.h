// Gives tests of the cache and of attention small geometries, deterministic values, and steps without
// attention.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "cache/host_sequence.h"
#include "cache/page_counts.h"
#include "cache/schedule.h"
#include "format/page_metric.h"
#include "format/unit_vector.h"
#include "recipe/constant_needs.h"

namespace kvant::testing {

inline Geometry small_geometry(int head_dim = 64, int n_heads = 6, int n_kv_heads = 2, int n_layers = 2) {
  Geometry g;
  g.model = "test";
  g.n_layers = n_layers;
  g.n_heads = n_heads;
  g.n_kv_heads = n_kv_heads;
  g.head_dim = head_dim;
  g.softmax_scale = 0.125F;
  g.trained_context = 4096;
  g.sliding_window.assign(n_layers, 0);
  return g;
}

// Returns two layers whose heads differ in size and number. Layer 1 has a sliding window.
inline Geometry unlike_layers(int head_dim = 64, int sliding_dim = 32, int n_kv_heads = 1,
                              int sliding_kv_heads = 4) {
  Geometry g = small_geometry(head_dim, 4, std::max(n_kv_heads, sliding_kv_heads), 2);
  g.sliding_window = {0, 150};
  g.layer_heads = {{n_kv_heads, head_dim, 0}, {sliding_kv_heads, sliding_dim, n_kv_heads}};
  g.head_dim = std::max(head_dim, sliding_dim);
  return g;
}

// Returns the values of one token's row, which depend on (layer, head, side, token) alone and have a few
// outlier channels.
inline std::vector<float> token_values(int layer, int head, int side, int token, int d) {
  std::mt19937 random(token * 1009 + layer * 101 + head * 11 + side);
  std::normal_distribution<float> normal;
  std::vector<float> row(d);
  for (int c = 0; c < d; ++c) row[c] = normal(random) * (c % 16 == 3 ? 4.0F : 1.0F);
  return row;
}

// Returns rows of tokens that no test appends, after the transforms `names`. Calibration would see such rows.
inline std::vector<float> calibration_rows(const HeadConstants& where, const std::vector<std::string>& names,
                                           int n, int d) {
  constexpr int kFirst = 100000;
  std::vector<float> rows;
  for (int i = 0; i < n; ++i) {
    const auto row = token_values(where.layer, where.kv_head, static_cast<int>(where.side), kFirst + i, d);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const auto transform = Transform::make(names, d, where);
  EXPECT_TRUE(transform.ok()) << (transform.ok() ? "" : transform.error().message);
  transform->forward({rows.data(), n, d});
  return rows;
}

// Returns a codebook of sub-vectors that occur in the rows. CodebookShape describes its shape.
inline std::vector<float> sampled_codebook(const HeadConstants& where, const ConstantNeed& need, int d) {
  const CodebookShape shape = *need.format->codebook_shape();
  const int parts = d / shape.dim;
  const int n = shape.per_sub_space ? shape.centroids : (shape.centroids + parts - 1) / parts;
  std::vector<float> rows = calibration_rows(where, need.after, n, d);
  for (int i = 0; i < n && shape.unit_vectors; ++i) {
    double norm = 0;
    for (int c = 0; c < d; ++c) norm += std::pow(rows[i * d + c], 2);
    for (int c = 0; c < d; ++c) rows[i * d + c] /= static_cast<float>(std::sqrt(norm));
  }
  std::vector<float> codebook;
  for (int part = 0; part < (shape.per_sub_space ? parts : 1); ++part) {
    for (int c = 0; c < shape.centroids; ++c) {
      const int from = shape.per_sub_space ? c * d + part * shape.dim : c * shape.dim;
      codebook.insert(codebook.end(), rows.begin() + from, rows.begin() + from + shape.dim);
    }
  }
  return codebook;
}

inline std::vector<float> normal_values(std::size_t n, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// Returns a metric of queries in a few directions, for a model whose channels i and d / 2 + i turn together.
inline std::vector<float> made_up_metric(int d, unsigned seed) {
  std::vector<ChannelTurn> turns;
  turns.reserve(d / 2);
  for (int i = 0; i < d / 2; ++i) turns.push_back({i, i + d / 2, (std::uint64_t{1} << 61) / (i + 1)});
  return page_metric_constant(normal_values(static_cast<std::size_t>(d) * kMetricRank, 1, seed), turns, d);
}

// Returns sensitivities for a ladder of rising bits. Heads differ widely, so an allocation gives them very
// different numbers of bits.
inline std::vector<float> falling_sensitivities(std::size_t n, unsigned seed) {
  float sensitivity = std::exp(2 * normal_values(1, 1, seed)[0]);
  std::vector<float> sensitivities;
  for (std::size_t i = 0; i < n; ++i, sensitivity /= 4) sensitivities.push_back(sensitivity);
  return sensitivities;
}

// Returns the constants that `recipe` needs from calibration, made up to suit token_values. Adapters and
// priorities are arbitrary.
inline std::shared_ptr<const Constants> made_up_constants(const Recipe& recipe, const Geometry& g) {
  auto constants = std::make_shared<Constants>();
  unsigned seed = 1;
  const auto values_for = [&](const HeadConstants& where, const ConstantNeed& need) {
    ++seed;
    const int d = g.dim(where.layer);
    if (need.kind == NeedKind::adapter) return normal_values(need.size, 0.1F, seed);
    if (need.name == kPageMetric) return made_up_metric(d, seed);
    if (need.kind == NeedKind::sensitivity) return falling_sensitivities(need.size, seed);
    if (need.kind == NeedKind::priority) return normal_values(1, 1, seed);
    if (need.kind == NeedKind::transform &&
        (need.name.ends_with("pca") || need.name.ends_with("oscar") || need.name.ends_with("nova")))
      return random_rotation(d, seed);
    if (need.kind == NeedKind::transform && need.name.ends_with("mean")) return normal_values(d, 0.1F, seed);
    if (need.kind != NeedKind::transform && need.format->codebook_shape()) {
      return sampled_codebook(where, need, d);
    }
    const std::vector<float> rows = calibration_rows(where, need.after, 256, d);
    std::vector<float> largest(need.size, 0.0F);  // by channel, or over all channels
    for (std::size_t i = 0; i < rows.size(); ++i) {
      float& best = largest[i % need.size];
      best = std::max(best, std::abs(rows[i]));
    }
    for (float& x : largest) x = need.kind == NeedKind::transform ? std::sqrt(x) : x / 119;
    return largest;
  };
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int head = 0; head < g.kv_heads(layer); ++head) {
      for (const Side side : kSides) {
        const HeadConstants where{constants.get(), layer, head, side};
        for (const ConstantNeed& need : constant_needs(recipe, g, layer, head, side)) {
          constants->set(layer, head, side, need.name, values_for(where, need));
        }
      }
    }
  }
  return constants;
}

inline std::shared_ptr<const Plan> plan_for(const std::string& recipe, const Geometry& geometry,
                                            std::shared_ptr<const Constants> constants = nullptr,
                                            PageOrder order = PageOrder::canonical) {
  const Result<Recipe> parsed = parse_recipe(recipe);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
  if (constants == nullptr) constants = made_up_constants(*parsed, geometry);
  const Result<std::shared_ptr<const Plan>> plan = resolve(*parsed, geometry, std::move(constants), order);
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return *plan;
}

// Runs one layer's append and seal of a step, head by head, without attention.
inline void run_layer_without_attention(Step& step, int layer) {
  const Plan& plan = step.plan();
  const int d = plan.geometry.dim(layer);
  std::vector<float> scratch;
  for (int s = 0; s < static_cast<int>(step.slices().size()); ++s) {
    const StepSlice& slice = step.slices()[s];
    for (int h = 0; h < plan.geometry.kv_heads(layer); ++h) {
      HeadState& head = head_of(step, s, layer, h);
      const TileRules rules{slice.is_prompt, plan.recipe.prefill, plan.layers[layer].window,
                            step.ledger(s, layer).n_sealed()};
      for (const Tile& tile : schedule(step.first_token(s), slice.n_tokens, rules)) {
        head.seal_until(tile.n_sealed, scratch);
        for (int t = tile.append_first; t < tile.append_end; ++t) {
          std::vector<float> k = token_values(layer, h, 0, t, d), v = token_values(layer, h, 1, t, d);
          plan.head(layer, h).k.transform.forward({k.data(), 1, d});
          plan.head(layer, h).v.transform.forward({v.data(), 1, d});
          head.append({k.data(), 1, d}, {v.data(), 1, d});
        }
        head.seal_until(tile.end_sealed, scratch);
      }
      head.seal_ahead(scratch);
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

// Returns the bytes of a page. For an unsealed page, only the rows in use are defined and returned.
inline std::string page_contents(const PageView& page, int head_dim) {
  std::string all = std::to_string(page.first_token) + "+" + std::to_string(page.n_tokens) +
                    (page.is_protected ? "k" : " ") + std::to_string(page.masked.words[0]) + "," +
                    std::to_string(page.masked.words[1]) + ":";
  for (const PageSide& side : {page.k, page.v}) {
    if (page.n_tokens == kPageTokens) {
      all.append(reinterpret_cast<const char*>(side.bytes), side.format->page_bytes(head_dim));
      continue;
    }
    std::vector<float> rows(static_cast<std::size_t>(page.n_tokens) * head_dim);
    side.format->decode(side.bytes, page.n_tokens, *side.context, rows.data());
    all.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
  }
  return all;
}

// Returns everything that a sequence holds in host memory or on a device: the bytes, masks and token ranges
// of every head's pages, and scores and corrections.
inline std::string contents(const Cache& cache, SequenceId sequence) {
  const Geometry& g = cache.plan().geometry;
  const SequencePages& held = cache.pages(sequence);
  std::string all = "length " + std::to_string(cache.length(sequence));
  for (int i = 0; i < held.n_groups(); ++i)
    all += " sealed " + std::to_string(held.ledger(i).n_sealed()) + " from " +
           std::to_string(held.ledger(i).first_page());
  for (int layer = 0; layer < g.n_layers; ++layer) {
    for (int h = 0; h < g.kv_heads(layer); ++h) {
      const Result<ListedPages> list = held.list_pages(layer, h, 0);
      EXPECT_TRUE(list.ok());
      all += "\n";
      for (const PageView& page : list->pages) all += page_contents(page, g.dim(layer));
    }
  }
  const auto add = [&all](const auto& numbers) {
    all.append(reinterpret_cast<const char*>(numbers.data()), std::span(numbers).size_bytes());
  };
  const Status seen = held.save_heads([&](int /*layer*/, int /*kv_head*/, const HeadImage& head) {
    const TokenScores& scores = head.chosen.scores;
    for (int t = 0; t < scores.size(); ++t) all += std::to_string(scores.score(t)) + " ";
    all += "observers from " + std::to_string(head.first_observer);
    add(head.sums);
  });
  EXPECT_TRUE(seen.ok()) << (seen.ok() ? "" : seen.error().message);
  return all;
}

}  // namespace kvant::testing
