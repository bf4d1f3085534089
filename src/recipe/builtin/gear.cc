// GEAR-L: KIVI's formats, and for each page a low-rank approximation of the error that they make, in f16:
// rank 4 (GEAR's choice), or rank 2 as KVLinC compares itself with it (its section 4.1). The newest 128
// tokens stay unquantized, as there. GEAR without the L keeps outliers too.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> gear_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"gear-l-4bit", Tier::comparison, "k=gear4-ch4g128,v=gear4-tok4g128,window=128",
       "GEAR-L: KIVI and a low-rank residual, 4 bits, rank 4"},
      {"gear-l-2bit", Tier::comparison, "k=gear4-ch2g128,v=gear4-tok2g128,window=128",
       "GEAR-L, 2 bits, rank 4"},
      {"gear-l-2bit-r2", Tier::comparison, "k=gear2-ch2g128,v=gear2-tok2g128,window=128",
       "GEAR-L, 2 bits, rank 2"},
  };
  return kRecipes;
}

}  // namespace kvant
