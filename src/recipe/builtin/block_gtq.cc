// Block-GTQ (arXiv 2606.24033; github.com/JIA-Lab-research/blockgtq at 5caa637). Each pair of K's channels
// that RoPE rotates together gets a width by its energy and that of its queries, greedily from 1 bit up.
// Channels of one width are coded together as TurboQuant codes a vector; V is TurboQuant's. Only the newest
// tokens are unquantized, as usual in kvant; the authors' code for reasoning keeps the first 4 and the newest
// 128. The authors' widths go up to 8. Here the limit is the largest width that occurs on the default model,
// since each width needs a norm per token.
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
