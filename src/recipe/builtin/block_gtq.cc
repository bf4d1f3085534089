// Block-GTQ (arXiv 2606.24033; github.com/JIA-Lab-research/blockgtq at 5caa637) gives a width to each pair of
// K's channels that RoPE rotates. The width depends on the energy of K and of the queries in the pair's
// channels, and grows greedily from 1 bit. TurboQuant codes all channels of one width together as one vector,
// and also codes V.
//
// Only the newest tokens stay unquantized, while the authors' code for reasoning also keeps the first 4
// tokens. The authors' widths go up to 8 bits. Here the limit is the largest width that occurs on the default
// model, because each width needs one norm per token.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> block_gtq_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"block-gtq-2bit", Tier::comparison, "k=gtq2w5,v=rhadamard:lm2",
       "Block-GTQ: bits of K allocated by pair of channels, 2 bits"},
      {"block-gtq-3bit", Tier::comparison, "k=gtq3w6,v=rhadamard:lm3",
       "Block-GTQ: bits of K allocated by pair of channels, 3 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
