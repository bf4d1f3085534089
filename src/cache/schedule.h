// Gives the order of append, attend and seal inside a step, and says which pages each query sees sealed.
// Visibility depends on the absolute token index alone, so the result does not depend on the cut into steps.
// All code that reserves, attends or seals follows these tiles.
#pragma once

#include <vector>

#include "base/geometry.h"

namespace kvant {

// Describes one tile of queries. First append tokens [append_first, append_end), which are none if already
// appended. Then attend with queries [query_first, query_end), at most kPageTokens of one page. Then seal
// what is due.
struct Tile {
  int append_first = 0, append_end = 0;
  int query_first = 0, query_end = 0;
  int n_sealed = 0;    // The leading pages that the queries see sealed.
  int end_sealed = 0;  // The leading pages that are sealed after the queries have attended.
};

// Says how the tokens of a slice are cut, and which pages of its sequence are sealed.
struct TileRules {
  bool is_prompt = false;
  int prefill = 0;   // tokens of a prompt's block, as the recipe says; kPrefillAll for one block
  int window = 0;    // newest tokens that stay unsealed
  int n_sealed = 0;  // pages that are sealed before the step
  // The maximum tokens of a decode tile. The number does not change what tokens see.
  int decode_tile = kPageTokens;
};

// Return the tiles of tokens [first, first + n), in `tiles` or as a new list. Decoded tokens see every page
// sealed that their position allows, even if a prompt's blocks have kept the page unsealed.
void schedule(int first, int n, const TileRules& rules, std::vector<Tile>& tiles);
std::vector<Tile> schedule(int first, int n, const TileRules& rules);

}  // namespace kvant
