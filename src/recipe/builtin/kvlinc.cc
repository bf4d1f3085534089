// KVLinC: K by channel without a transform, and V by token, rotated by a Hadamard matrix (section 3.1,
// observation 3). The newest 128 tokens stay unquantized (section 4.1). A linear attention over the rounding
// errors of K restores what quantization took from the attention weights (section 3.2, equations 4 to 6).
// Calibration trains its feature maps.
//
// `correction` states the scale of that term. Equation 5 adds it to unshifted exponentials (absolute);
// Algorithm 1 as printed adds it to exponentials less their maximum (relative).
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> kvlinc_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"kvlinc-2bit", Tier::product, "k=ch2g128,v=hadamard:tok2g128,window=128,correction=relative",
       "KVLinC: V rotated, linear correction, 2 bits"},
      {"kvlinc-1bit", Tier::product, "k=ch1g64,v=hadamard:tok1g64,window=128,correction=relative",
       "KVLinC, 1 bit, groups of 64"},
  };
  return kRecipes;
}

}  // namespace kvant
