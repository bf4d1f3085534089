// Lists kvant's own recipes that need no calibration. One trellis codes K and V in all layers and heads. A
// Hadamard matrix rotates K and V, and four sink tokens stay unquantized. On a model without calibration, a
// uniform recipe replaces a kvant recipe, under the uniform recipe's own name (uncalibrated_recipe.h).
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> uniform_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"uniform-4bit", Tier::product, "k=hadamard:tcq4,v=hadamard:tcq4,sink=4",
       "kvant's trellis code, 4 bits in all layers and heads"},
      {"uniform-3bit", Tier::product, "k=hadamard:tcq3,v=hadamard:tcq3,sink=4",
       "kvant's trellis code, 3 bits in all layers and heads"},
      {"uniform-2bit", Tier::product, "k=hadamard:tcq2,v=hadamard:tcq2,sink=4",
       "kvant's trellis code, 2 bits in all layers and heads"},
  };
  return kRecipes;
}

}  // namespace kvant
