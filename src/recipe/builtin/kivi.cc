// KIVI quantizes K by channel over groups of tokens, because K's outliers sit in fixed channels, and V by
// token.
//
// KIVI keeps the newest R = 128 tokens unquantized. kvant's window counts full pages in addition to the page
// that is being filled, so `window=128` keeps 128 to 255 tokens. The number in a recipe's name is the code
// width in bits. Scales and offsets add 0.25 bits with groups of 128, 0.5 with groups of 64, and 1 with
// groups of 32.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> kivi_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"kivi-4bit", Tier::product, "k=ch4g128,v=tok4g128,window=128", "KIVI, 4 bits, groups of 128"},
      {"kivi-3bit", Tier::product, "k=ch3g128,v=tok3g128,window=128", "KIVI, 3 bits, groups of 128"},
      {"kivi-2bit", Tier::product, "k=ch2g128,v=tok2g128,window=128", "KIVI, 2 bits, groups of 128"},
      {"kivi-2bit-g32", Tier::product, "k=ch2g32,v=tok2g32,window=128", "KIVI, 2 bits, groups of 32"},
      {"kivi-1bit", Tier::product, "k=ch1g64,v=tok1g64,window=128", "KIVI, 1 bit, groups of 64"},
  };
  return kRecipes;
}

}  // namespace kvant
