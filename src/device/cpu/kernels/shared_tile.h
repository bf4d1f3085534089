// SharedTile divides the pages that a tile of queries sees into runs, which threads share out. The engine's
// loop and the CPU library divide work by it.
#pragma once

#include <span>
#include <vector>

#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant::cpu {

struct SharedTile {
  QueryTile queries;
  std::vector<PageView> pages;  // What the queries see, oldest first.
  int pages_per_run = 0;
  std::vector<PartialAttention> runs;  // The results, by run.

  // Divides the pages, and prepares runs without results.
  void divide(const AttentionRules& rules);
  std::span<const PageView> pages_of(int run) const;
  // Merges all runs into the first run. A tile without pages gets a run that has seen nothing.
  PartialAttention& merge(int head_dim);
};

// TileRun is one run of a Tile, which derives from SharedTile.
template <class Tile>
struct TileRun {
  Tile* tile;
  int number;

  std::span<const PageView> pages() const { return tile->pages_of(number); }
  PartialAttention& result() const { return tile->runs[number]; }
};

template <class Tile>
void add_runs(Tile& tile, std::vector<TileRun<Tile>>& runs) {
  for (int run = 0; run < static_cast<int>(tile.runs.size()); ++run) runs.push_back({&tile, run});
}

}  // namespace kvant::cpu
