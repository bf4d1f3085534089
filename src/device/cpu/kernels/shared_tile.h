// SharedTile divides the pages that a tile of queries sees into runs, which threads share out, and ends the
// rows. The engine's loop and the CPU library attend by it.
#pragma once

#include <span>
#include <vector>

#include "device/cpu/kernels/finished_rows.h"
#include "device/cpu/kernels/tile.h"
#include "format/page_view.h"

namespace kvant::cpu {

struct SharedTile {
  QueryTile queries;
  std::vector<PageView> pages;  // What the queries see, oldest first.
  AttentionRules rules;
  int pages_per_run = 0;
  std::vector<PartialAttention> runs;  // The results, by run.
  FinishedRows finished;

  // Divides the pages, and prepares runs without results.
  void divide();
  std::span<const PageView> pages_of(int run) const;
  // Merges all runs into the first run. A tile without pages gets a run that has seen nothing.
  PartialAttention& merge();
  // Merges the runs and ends the rows. The accumulator then holds outputs, and `finished` has the LSEs.
  PartialAttention& finish(const RowEnds& ends);
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
