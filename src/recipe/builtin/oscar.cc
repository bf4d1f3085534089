// OSCAR (arXiv 2605.17757; github.com/FutureMLS-Lab/OSCAR at 473ff3f) rotates K and V to the directions that
// attention reads most, and mixes them by a Hadamard matrix. The values are clipped at a quantile of each
// token's magnitudes, 0.96 for K and 0.92 for V, as the paper sets for Qwen3-8B. Then each token is quantized
// to 2 bits in groups of 128. The first 64 and the newest 256 tokens stay unquantized.
//
// In kvant each KV head has its own basis. The authors' code shares one basis among the heads of a layer, but
// their figures favour a basis per head. The permutation of channels is left out, because it only matters if
// a head has several groups.
//
// The later code of October 2026 subtracts each head's calibrated mean of K before the rotation (centring).
// That code can also take the steps of 2-bit codes from the standard deviation of the clipped group
// (Lloyd-Max). The code then keeps 128 first and 2048 newest tokens unquantized. oscar-2bit-centred keeps the
// window of the paper.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> oscar_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"oscar-2bit", Tier::comparison,
       "k=oscar+hadamard:tok2g128c96,v=oscar+hadamard:tok2g128c92,sink=64,window=256",
       "OSCAR: rotation to the directions that attention reads most, clipping, 2 bits"},
      {"oscar-2bit-centred", Tier::comparison,
       "k=mean+oscar+hadamard:tok2g128c96,v=oscar+hadamard:tok2g128c92,sink=64,window=256",
       "OSCAR with the mean of K subtracted"},
      {"oscar-2bit-lm", Tier::comparison,
       "k=mean+oscar+hadamard:tok2g128c96l,v=oscar+hadamard:tok2g128c92l,sink=128,window=2048",
       "OSCAR's later code: mean of K subtracted, Lloyd-Max steps, a long window"},
  };
  return kRecipes;
}

}  // namespace kvant
