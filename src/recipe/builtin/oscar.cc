// OSCAR (arXiv 2605.17757; github.com/FutureMLS-Lab/OSCAR at 473ff3f): K and V turned to the directions that
// attention reads most, mixed by a Hadamard matrix, clipped at a quantile of each token's magnitudes (0.96 of
// K's, 0.92 of V's: its setting for Qwen3-8B) and quantized token by token to 2 bits in groups of 128; the
// first 64 and the newest 256 tokens stay unquantized. Here each KV head has a basis of its own, where its
// code gives a layer's heads one: the better choice by its authors' own figures. Its last step, a permutation
// of channels, only matters where a head has several groups, and is left out.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> oscar_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"oscar-2bit", Tier::comparison,
       "k=oscar+hadamard:tok2g128c96,v=oscar+hadamard:tok2g128c92,sink=64,window=256",
       "OSCAR: rotated to what attention reads, clipped, 2 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
