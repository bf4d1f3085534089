// UltraQuant (vllm/v1/attention/ops/ultraquant at 385d86a) stores 4-bit floating-point numbers, with a power
// of two as the scale of 32 channels of a token. A Hadamard matrix rotates K, and V is stored as it is. The
// paper leaves the first two and the last two layers unquantized.
//
// UltraQuant also rounds queries to FP8. kvant does not round queries.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> ultraquant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"ultraquant", Tier::comparison, "k=hadamard:mxfp4c156,v=mxfp4c156,k@edge2=bf16,v@edge2=bf16",
       "UltraQuant: 4-bit floating point, scales of 32 channels are powers of two"},
  };
  return kRecipes;
}

}  // namespace kvant
