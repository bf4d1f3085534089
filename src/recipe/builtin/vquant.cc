// VQuant: K in 4 and V in 2 bits. The tokens to which queries have attended most so far (the "vertical lines"
// of attention maps, equation 7) and the newest 128 stay unquantized (section 5). The paper protects 5 % and,
// in its ablation (section 6.3.1), 1 and 10 %. Its prompt kernel (section 5.2) is independent of that:
// `prompt=int8` works with any cache.
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
       "VQuant's prompt kernel in INT8, cache unquantized"},
  };
  return kRecipes;
}

}  // namespace kvant
