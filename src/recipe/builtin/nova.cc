// NOVA-KV (arXiv 2608.04074, code of Amir-zsh/nova-kv at d81c77b) maps K to a different basis
// (transform/nova.cc). In this basis, the queries read all directions equally, and the keys' components are
// independent. Groups of 4 components then share a code of 8 bits, after a division by the token's length
// (format/vq.cc). Each group has its own codebook. V is stored as in OSCAR. The first 64 and the newest 256
// tokens stay unquantized.
//
// The authors round centroids to E5M2, and learn from 198 prompts of GPQA. kvant stores codebooks in INT8 or
// F16, and learns from its own calibration text.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> nova_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"nova-2bit", Tier::comparison, "k=mean+nova:npq-d4b8,v=oscar+hadamard:tok2g128c92,sink=64,window=256",
       "NOVA-KV: basis from queries and keys, codebooks for K, 2 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
