// TurboQuant, as Sparse V runs it. A randomized Hadamard transform of K and V makes the coordinates of a unit
// vector nearly normal. Each is rounded to the nearest of the 2^B levels that are best for that distribution
// (Lloyd-Max), and a norm is kept for each token. Nothing is calibrated.
//
// Sparse V: once the scores are known, V of a token whose softmax weight is below tau = 1e-6 is not read at
// all. According to the paper, a K of more bits (q8_0) with a TurboQuant V rescues models that otherwise lose
// too much.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> turboquant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"turbo4", Tier::product, "k=rhadamard:lm4,v=rhadamard:lm4", "TurboQuant, 4 bits"},
      {"turbo3", Tier::product, "k=rhadamard:lm3,v=rhadamard:lm3", "TurboQuant, 3 bits"},
      {"turbo2", Tier::product, "k=rhadamard:lm2,v=rhadamard:lm2", "TurboQuant, 2 bits"},
      {"turbo3-sparse-v", Tier::product, "k=rhadamard:lm3,v=rhadamard:lm3,skip=1e-6",
       "Sparse V on TurboQuant, 3 bits"},
      {"q8-turbo3", Tier::product, "k=tok8g32s,v=rhadamard:lm3,skip=1e-6",
       "Sparse V: K like q8_0, V TurboQuant, 3 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
