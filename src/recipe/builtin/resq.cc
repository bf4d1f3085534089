// ResQ's KV cache stores K (after RoPE) and V in the basis of their principal directions, which calibration
// finds. The first directions have 16 bits, and the others 2 bits per token and direction. KVLinC's
// comparison (its section 4.1) keeps 3.125 % of the directions in 16 bits: 4 of 128, or 2 of 64. The newest
// 128 tokens stay unquantized, as in KVLinC's comparison.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> resq_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"resq-2bit", Tier::comparison, "k=pca:hi4-tok2g128,v=pca:hi4-tok2g128,window=128",
       "ResQ: 4 principal directions in 16 bits, the others in 2"},
      {"resq-2bit-h2", Tier::comparison, "k=pca:hi2-tok2g128,v=pca:hi2-tok2g128,window=128",
       "ResQ, 2 directions in 16 bits: for heads of 64 channels"},
  };
  return kRecipes;
}

}  // namespace kvant
