// KVarN (arXiv 2606.03458, code of huawei-csl/KVarN) rotates K and V by a Hadamard matrix. KVarN then scales
// the tokens and channels of a tile of 128 tokens to equal standard deviations, and quantizes K by channel
// and V by token (format/varn.cc). The first 128 tokens stay unquantized, and so do the tokens of an
// unfinished tile, both in F16. The released presets are k4v2 and k4v4. The paper's tables have 2 bits for K
// and V.
//
// KVarN leaves layers with a sliding window unquantized. kvant quantizes these layers too, as in all recipes.
// kvarn-k2v2-mended has kvant's corrections of the scales and ranges.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> kvarn_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"kvarn-k4v4", Tier::comparison, "k=hadamard:vch4,v=hadamard:vtok4,sink=128,tail=f16",
       "KVarN: tokens and channels scaled to equal deviations, K and V 4 bits"},
      {"kvarn-k4v2", Tier::comparison, "k=hadamard:vch4,v=hadamard:vtok2,sink=128,tail=f16",
       "KVarN, K 4, V 2 bits"},
      {"kvarn-k2v2", Tier::comparison, "k=hadamard:vch2,v=hadamard:vtok2,sink=128,tail=f16",
       "KVarN, K and V 2 bits"},
      {"kvarn-k2v2-mended", Tier::comparison, "k=hadamard:vch2m,v=hadamard:vtok2m,sink=128,tail=f16",
       "KVarN with scales and ranges mended by kvant, K and V 2 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
