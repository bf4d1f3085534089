// TurboAttention: attention in integers throughout. Blocks of 64 tokens become INT8 and these integers 4-bit
// codes channel by channel (FlashQ, section 3.1, Algorithm 1); in the mix, half of each layer's KV heads,
// those of the lowest priority gap x std, get 2 bits (section 3.2). New tokens wait in INT8 with a universal
// scale (section 3.3), q and P are INT8 too, and the exponential is a table times a cubic polynomial that is
// zero below -6 (SAS, section 4, Algorithm 3; the -6 in section 5.2).
//
// The paper has no sink. One scale serves 64 tokens and all channels, and the first token of a text is far
// larger than others, which leaves its block few levels and makes the divergence three times as large on
// SmolLM2-135M. kvant's recipes keep the first four tokens out of the blocks; with sink=0 they are the
// paper's.
//
// turboattention-paper rounds and rescales as the algorithms print it, where that costs accuracy without
// being any faster.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> turboattention_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"turboattention-4bit", Tier::product, "k=prog4,v=prog4,sink=4,softmax=sas,products=integer,tail=int8",
       "TurboAttention: integer attention, 4 bits"},
      {"turboattention-mix", Tier::product,
       "k=prog4,v=prog4,sink=4,mix=0.5,mix_k=prog2,mix_v=prog2,softmax=sas,products=integer,tail=int8",
       "TurboAttention, half of the heads in 2 bits"},
      {"turboattention-paper", Tier::comparison,
       "k=prog4-paper,v=prog4-paper,softmax=sas-paper,products=integer,tail=int8",
       "TurboAttention as printed, 4 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
