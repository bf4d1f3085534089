// The order of append, attend and seal inside a step, and what each query sees sealed: visibility as a
// function of absolute token index alone (design section 2). Whoever reserves, attends or seals walks these
// tiles.
#pragma once

#include <vector>

#include "base/geometry.h"

namespace kvant {

// One tile of queries: first append [append_first, append_end) (empty when already appended), then attend
// the queries [query_first, query_end), at most kPageTokens of one page, then seal what is due.
struct Tile {
  int append_first = 0, append_end = 0;
  int query_first = 0, query_end = 0;
  int n_sealed = 0;    // leading pages that the queries see sealed
  int end_sealed = 0;  // leading pages that are sealed once they have attended
};

// How the tokens of a slice are cut, and what of its sequence is sealed.
struct TileRules {
  bool is_prompt = false;
  int prefill = 0;                // tokens of a block of a prompt: the recipe's (kPrefillAll: all are one)
  int window = 0;                 // the newest tokens that stay unsealed
  int n_sealed = 0;               // pages that are sealed before the step
  int decode_tile = kPageTokens;  // max tokens of a tile that decodes; they see the same, whatever it is
};

// The tiles of tokens [first, first + n), into `tiles`, or as a list of their own. Tokens that decode see
// every page sealed that their position allows, even if a prompt's blocks have kept it unsealed.
void schedule(int first, int n, const TileRules& rules, std::vector<Tile>& tiles);
std::vector<Tile> schedule(int first, int n, const TileRules& rules);

}  // namespace kvant
