// VQuant stores K in 4 bits and V in 2 bits. The newest 128 tokens stay unquantized, and so do the tokens to
// which queries have attended most so far (section 5). The most attended tokens are the "vertical lines" of
// attention maps (equation 7). The paper protects 5 % of the tokens, or 1 and 10 % in its ablation (section
// 6.3.1). VQuant's prompt kernel (section 5.2) is a separate option: `prompt=int8` works with any cache.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> vquant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"vquant-k4v2", Tier::product, "k=ch4g128,v=tok2g128,window=128,protect=0.05",
       "VQuant: K 4, V 2 bits, 5 % of tokens protected"},
      {"vquant-k4v2-1pct", Tier::product, "k=ch4g128,v=tok2g128,window=128,protect=0.01",
       "VQuant, 1 % of tokens protected"},
      {"vquant-k4v2-10pct", Tier::product, "k=ch4g128,v=tok2g128,window=128,protect=0.1",
       "VQuant, 10 % of tokens protected"},
      {"vquant-prompt", Tier::comparison, "k=bf16,v=bf16,window=128,prefill=all,prompt=int8,protect=0.05",
       "VQuant's INT8 attention within prompts, unquantized cache"},
  };
  return kRecipes;
}

}  // namespace kvant
