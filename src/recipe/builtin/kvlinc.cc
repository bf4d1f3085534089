// KVLinC quantizes K by channel without a transform, and V by token after a Hadamard rotation (section 3.1,
// observation 3). The newest 128 tokens stay unquantized (section 4.1). A linear attention over the rounding
// errors of K corrects the attention weights (section 3.2, equations 4 to 6). Calibration trains the feature
// maps of this linear attention.
//
// The key `correction` chooses the scale of the term from the linear attention. Equation 5 adds the term to
// unshifted exponentials (absolute). Algorithm 1 as printed adds the term to exponentials of scores minus
// their maximum (relative).
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
