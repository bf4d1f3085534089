// vLLM's TurboQuant (pull request 38479: turboquant/config.py, triton_turboquant_store.py) differs from the
// recipes turbo*. A Hadamard matrix without random signs rotates K alone. A token of K keeps the nearest
// Lloyd-Max level of each coordinate of the unit vector, and a gain that restores the token's length (nc). V
// is not rotated. One uniform grid serves all channels of a token of V. The preset k8v4 casts K to FP8
// without a scale. vLLM leaves the first two and the last two layers of dense models unquantized.
//
// vLLM has no window and quantizes every token at once. kvant's tail keeps the tokens of an unfinished page,
// here in BF16. The scale of V is measured from the rounded offset, as in all grids of kvant.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> vllm_turboquant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"vllm-tq-k8v4", Tier::comparison, "k=fp8-s1,v=tok4g512,k@edge2=bf16,v@edge2=bf16",
       "vLLM's TurboQuant preset k8v4: K in FP8 without a scale, V 4 bits"},
      {"vllm-tq-4bit-nc", Tier::comparison, "k=hadamard:lm4n,v=tok4g512,k@edge2=bf16,v@edge2=bf16",
       "vLLM's TurboQuant preset 4bit_nc: K and V 4 bits"},
      {"vllm-tq-k3v4-nc", Tier::comparison, "k=hadamard:lm3n,v=tok4g512,k@edge2=bf16,v@edge2=bf16",
       "vLLM's TurboQuant preset k3v4_nc: K 3, V 4 bits"},
      {"vllm-tq-3bit-nc", Tier::comparison, "k=hadamard:lm3n,v=tok3g512,k@edge2=bf16,v@edge2=bf16",
       "vLLM's TurboQuant preset 3bit_nc: K and V 3 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
