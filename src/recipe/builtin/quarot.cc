// QuaRot's KV cache rotates K (after RoPE) and V by a Hadamard matrix. Each token is then quantized
// asymmetrically in groups of 128 channels, or as one group if a head is smaller. The newest 128 tokens stay
// unquantized, as in KVLinC's comparison (its section 4.1).
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> quarot_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"quarot-4bit", Tier::comparison, "k=hadamard:tok4g128,v=hadamard:tok4g128,window=128",
       "QuaRot: rotation, scales per token, 4 bits"},
      {"quarot-2bit", Tier::comparison, "k=hadamard:tok2g128,v=hadamard:tok2g128,window=128",
       "QuaRot: rotation, scales per token, 2 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
