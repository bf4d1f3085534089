// Block-GTQ (arXiv 2606.24033; github.com/JIA-Lab-research/blockgtq at 5caa637): each pair of K's channels
// that RoPE turns together gets a width by its energy and that of its queries, greedily from 1 bit on;
// channels of one width are coded together as TurboQuant codes a vector. V is TurboQuant's. Nothing stays
// unquantized for good; the newest tokens are this cache's unsealed ones (its code for reasoning keeps 4
// first and 128 newest). Its widths go up to 8; here up to what they reach on the default model, since each
// takes a norm a token.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> block_gtq_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"block-gtq-2bit", Tier::comparison, "k=gtq2w5,v=rhadamard:lm2",
       "Block-GTQ: bits of K by pair of channels, 2 bits"},
      {"block-gtq-3bit", Tier::comparison, "k=gtq3w6,v=rhadamard:lm3",
       "Block-GTQ: bits of K by pair of channels, 3 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
