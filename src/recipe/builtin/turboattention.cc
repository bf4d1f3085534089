// TurboAttention attends in integers throughout. Blocks of 64 tokens become INT8, and these integers become
// 4-bit codes channel by channel (FlashQ, section 3.1, Algorithm 1). In the mixed recipe, the half of each
// layer's KV heads with the lowest priority gap x std gets 2 bits (section 3.2). New tokens wait in INT8 with
// a universal scale (section 3.3), and q and P are INT8 too. The exponential is a table times a cubic
// polynomial, and zero below -6 (SAS, section 4, Algorithm 3; section 5.2 gives the -6).
//
// The paper has no sink. One scale serves 64 tokens and all channels, and the first token of a text is far
// larger than the others. The first block therefore has few levels left, which triples the divergence on
// SmolLM2-135M. kvant's recipes keep the first four tokens out of the blocks; sink=0 gives the paper's
// recipe.
//
// turboattention-paper rounds and rescales exactly as the printed algorithms do, which costs accuracy without
// being any faster.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> turboattention_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"turboattention-4bit", Tier::product, "k=prog4,v=prog4,sink=4,softmax=sas,products=integer,tail=int8",
       "TurboAttention: integer attention, 4 bits"},
      {"turboattention-mix", Tier::product,
       "k=prog4,v=prog4,sink=4,mix=0.5,mix_k=prog2,mix_v=prog2,softmax=sas,products=integer,tail=int8",
       "TurboAttention with half of the heads in 2 bits"},
      {"turboattention-paper", Tier::comparison,
       "k=prog4-paper,v=prog4-paper,softmax=sas-paper,products=integer,tail=int8",
       "TurboAttention with the paper's rounding and SAS, 4 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
