// The references: 16-bit caches, and the 8-bit floating-point cache that serving engines default to. All
// other recipes are judged against bf16.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> plain_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"bf16", Tier::product, "k=bf16,v=bf16", "unquantized: bfloat16, the reference of every table"},
      {"f16", Tier::product, "k=f16,v=f16", "unquantized: IEEE half precision, as llama.cpp's default"},
      {"fp8", Tier::product, "k=fp8,v=fp8", "FP8 (e4m3) with one scale a token"},
  };
  return kRecipes;
}

}  // namespace kvant
