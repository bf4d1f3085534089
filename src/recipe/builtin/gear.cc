// GEAR-L adds to KIVI's formats a low-rank approximation of each page's quantization error, in f16. The rank
// is 4 as in GEAR's paper, or 2 as in KVLinC's comparison (its section 4.1). As in both papers, the newest
// 128 tokens stay unquantized. Full GEAR also stores outliers.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> gear_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"gear-l-4bit", Tier::comparison, "k=gear4-ch4g128,v=gear4-tok4g128,window=128",
       "GEAR-L: KIVI with a low-rank approximation of the error, 4 bits, rank 4"},
      {"gear-l-2bit", Tier::comparison, "k=gear4-ch2g128,v=gear4-tok2g128,window=128",
       "GEAR-L, 2 bits, rank 4"},
      {"gear-l-2bit-r2", Tier::comparison, "k=gear2-ch2g128,v=gear2-tok2g128,window=128",
       "GEAR-L, 2 bits, rank 2"},
  };
  return kRecipes;
}

}  // namespace kvant
