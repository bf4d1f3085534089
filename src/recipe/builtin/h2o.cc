// H2O (Zhang et al. 2023) drops the tokens that have received the least attention, but no token of the
// window. kvant uses VQuant's score, the mean weight from the last queries of each page, instead of H2O's
// plain sum.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> h2o_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"h2o-50", Tier::comparison, "k=bf16,v=bf16,window=128,evict=0.5",
       "H2O: evicts the less attended half of the tokens outside the window"},
  };
  return kRecipes;
}

}  // namespace kvant
