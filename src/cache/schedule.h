// The order of append, attend and seal inside a step: visibility as a function of absolute token index alone
// (design section 2).
#pragma once

#include <vector>

#include "base/geometry.h"

namespace kvant {

// One tile of queries: first append [append_first, append_end) (empty when already appended), then attend
// the queries [query_first, query_end), at most kPageTokens of one page, then seal what is due.
struct Tile {
  int append_first = 0, append_end = 0;
  int query_first = 0, query_end = 0;
  // After attending: the pages that are due at this point (sealed_pages) are sealed. -1: seal nothing.
  int seal_point = -1;
};

// How the tokens of a slice are cut. `prefill` is the recipe's (kPrefillAll: the whole prompt is a block).
struct TileSizes {
  bool is_prompt = false;
  int prefill = 0;                // tokens of a block of a prompt
  int decode_tile = kPageTokens;  // max tokens of a tile that decodes; they see the same, whatever it is
};

// The tiles of tokens [first, first + n), into `tiles`, or as a list of their own.
void schedule(int first, int n, const TileSizes& sizes, std::vector<Tile>& tiles);
std::vector<Tile> schedule(int first, int n, const TileSizes& sizes);

// The seal point before the first tile: a decode step sees every page sealed that its position allows, even
// if the prompt's blocks kept it unsealed. -1: nothing.
int seal_point_before(int first, bool is_prompt);

}  // namespace kvant
