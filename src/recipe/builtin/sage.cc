// SageAttention (Zhang et al. 2025) speeds up prefill: after K's mean over the prompt is subtracted, q and K
// are multiplied in INT8. P.V stays in 16 bits, and the cache is not compressed.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> sage_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"sage", Tier::comparison, "k=bf16,v=bf16,prefill=all,prompt=sage",
       "SageAttention: INT8 attention within prompts, unquantized cache"},
  };
  return kRecipes;
}

}  // namespace kvant
