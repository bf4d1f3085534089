// MILLION uses product quantization with one codebook for each sub-space of K and of V, and no transform. The
// widths come from VecInfer's comparison (its section 4.1 and Tables 2, 3 and 8), where the newest 128 tokens
// stay unquantized too.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> million_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"million-4bit", Tier::comparison, "k=pq-d2b8,v=pq-d2b8,window=128",
       "MILLION: product quantization, 4 bits"},
      {"million-2bit", Tier::comparison, "k=pq-d4b8,v=pq-d4b8,window=128", "MILLION, 2 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
