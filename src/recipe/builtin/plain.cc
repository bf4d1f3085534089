// Lists the reference recipes: 16-bit caches and 8-bit floating-point caches. All other recipes are compared
// with bf16. FP8 caches of serving engines have no scale per token; fp8-s1 and fp8-amax reproduce them.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> plain_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"bf16", Tier::product, "k=bf16,v=bf16", "unquantized bfloat16, the reference of comparisons"},
      {"f16", Tier::product, "k=f16,v=f16", "unquantized IEEE half precision, llama.cpp's default"},
      {"fp8", Tier::product, "k=fp8,v=fp8", "FP8 (e4m3) with one scale per token"},
      {"fp8-s1", Tier::comparison, "k=fp8-s1,v=fp8-s1,tail=fp8-s1",
       "FP8 as serving engines store it by default: scale 1, also for unsealed tokens"},
      {"fp8-amax", Tier::comparison, "k=amax:fp8-s1,v=amax:fp8-s1,tail=fp8-s1",
       "FP8 as serving engines store it after calibration: one scale per layer for K and one for V"},
  };
  return kRecipes;
}

}  // namespace kvant
