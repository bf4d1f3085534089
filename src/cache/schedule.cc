#include "cache/schedule.h"

#include <algorithm>

#include "cache/page_counts.h"
#include "recipe/recipe.h"

namespace kvant {

void schedule(int first, int n, const TileRules& rules, std::vector<Tile>& tiles) {
  const int end = first + n;
  const bool whole = rules.is_prompt && rules.prefill == kPrefillAll;
  const int block = rules.is_prompt ? rules.prefill : rules.decode_tile;
  int sealed = rules.n_sealed;
  const auto pass = [&](int token) { sealed = std::max(sealed, sealed_pages(token, rules.window)); };
  if (!rules.is_prompt) pass(first);
  tiles.clear();
  for (int t = first; t < end;) {
    const int block_end = whole ? end : std::min(end, (t / block + 1) * block);
    for (int q = t; q < block_end;) {
      const int query_end = std::min(block_end, (q / kPageTokens + 1) * kPageTokens);
      tiles.push_back({q == t ? t : block_end, block_end, q, query_end, sealed, sealed});
      q = query_end;
    }
    if (!whole && block_end % std::max(block, kPageTokens) == 0) pass(block_end);
    tiles.back().end_sealed = sealed;
    t = block_end;
  }
}

std::vector<Tile> schedule(int first, int n, const TileRules& rules) {
  std::vector<Tile> tiles;
  schedule(first, n, rules, tiles);
  return tiles;
}

}  // namespace kvant
