// Computes how much weight queries give to each token, as VQuant's vertical scores need (VQuant section 5).
// The engine and the CPU library share the computation.
#pragma once

#include <span>
#include <vector>

#include "device/cpu/kernels/tile_attention.h"

namespace kvant {

// Holds queries whose attention decides which tokens are protected.
struct ObserverTile {
  QueryTile queries;
  std::vector<float> lse;  // by row of the tile
};

// Adds to weights[t], for each token t of `pages`, the sum of its softmax weights over `observers`. `rules`
// are the layer's, with real products. V is not read. Different threads may weigh different runs of pages at
// the same time.
void weigh_tokens(const ObserverTile& observers, std::span<const PageView> pages, const AttentionRules& rules,
                  TileScratch& scratch, std::span<double> weights);

}  // namespace kvant
