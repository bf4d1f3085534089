// ResQ's KV cache: K (after RoPE) and V in the basis of their principal directions, which calibration finds.
// The first directions have 16 bits, the others 2 bits, token-wise. KVLinC's comparison uses a share of 3.125
// % in 16 bits (its section 4.1): 4 of 128 channels, or 2 of 64. The newest 128 tokens stay unquantized, as
// there.
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
