#include "cache/schedule.h"

#include <algorithm>

#include "recipe/recipe.h"

namespace kvant {

void schedule(int first, int n, const TileSizes& sizes, std::vector<Tile>& tiles) {
  const int end = first + n;
  const bool whole = sizes.is_prompt && sizes.prefill == kPrefillAll;
  const int block = sizes.is_prompt ? sizes.prefill : sizes.decode_tile;
  tiles.clear();
  for (int t = first; t < end;) {
    const int block_end = whole ? end : std::min(end, (t / block + 1) * block);
    for (int q = t; q < block_end;) {
      const int query_end = std::min(block_end, (q / kPageTokens + 1) * kPageTokens);
      tiles.push_back({q == t ? t : block_end, block_end, q, query_end, -1});
      q = query_end;
    }
    if (!whole && block_end % std::max(block, kPageTokens) == 0) tiles.back().seal_point = block_end;
    t = block_end;
  }
}

std::vector<Tile> schedule(int first, int n, const TileSizes& sizes) {
  std::vector<Tile> tiles;
  schedule(first, n, sizes, tiles);
  return tiles;
}

int seal_point_before(int first, bool is_prompt) {
  return is_prompt ? -1 : first;
}

}  // namespace kvant
