// Learns the constants of formats with query-weighted errors of K (format/page_metric.h), from moments of
// queries. An error of K matters only in the directions of queries, so the metric comes from queries.
#pragma once

#include <span>
#include <vector>

#include "base/channel_turn.h"
#include "base/geometry.h"
#include "calibrate/query_metric.h"
#include "recipe/constant_needs.h"
#include "recipe/recipe.h"
#include "transform/constants.h"

namespace kvant {

// Returns whether a recipe needs metrics of a kind, NeedKind::metric or NeedKind::sampled_metric.
bool needs_page_metrics(std::span<const Recipe> recipes, const Geometry& geometry,
                        NeedKind kind = NeedKind::metric);

// Adds the metrics of a kind to `constants` by scoped name. `constants` must already have the recipes'
// transforms. `turns` are RoPE's rotations in each layer.
void learn_page_metrics(std::span<const Recipe> recipes, const Geometry& geometry,
                        const QueryMoments& moments, const std::vector<std::vector<ChannelTurn>>& turns,
                        int n_threads, Constants& constants, NeedKind kind = NeedKind::metric);

}  // namespace kvant
