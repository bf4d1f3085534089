// The recipes use TurboQuant in the way of Sparse V. A randomized Hadamard transform of K and V makes the
// coordinates of a unit vector nearly normal. Each coordinate is rounded to one of the 2^B levels that are
// best for a normal distribution (Lloyd-Max). Each token keeps a norm. Nothing is calibrated.
//
// Sparse V computes the scores first. V of a token is not read at all if the token's softmax weight is below
// tau = 1e-6. According to the paper, q8_0 for K with TurboQuant for V rescues models that otherwise lose too
// much.
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
