// Lists llama.cpp's cache types in kvant's formats. Each token's channels form groups of 32, with an f16
// scale (q8_0, q5_0, q4_0: symmetric) or an f16 scale and offset (q5_1, q4_1). The bits equal llama.cpp's,
// but the rounding is kvant's own. The -h variants first rotate K and V, which spreads K's outlier channels.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> llama_cpp_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"q8_0", Tier::product, "k=tok8g32s,v=tok8g32s",
       "like llama.cpp's q8_0: groups of 32 channels, 8 bits"},
      {"q8_0/q4_0", Tier::product, "k=tok8g32s,v=tok4g32s", "K like q8_0, V like q4_0"},
      {"q4_0", Tier::product, "k=tok4g32s,v=tok4g32s",
       "like llama.cpp's q4_0: groups of 32 channels, 4 bits"},
      {"q4_0-h", Tier::product, "k=hadamard:tok4g32s,v=hadamard:tok4g32s", "q4_0 after a Hadamard rotation"},
  };
  return kRecipes;
}

std::span<const LlamaCppType> llama_cpp_types() {
  static constexpr LlamaCppType kTypes[] = {
      {"q8_0", "tok8g32s"}, {"q5_1", "tok5g32"},  {"q5_0", "tok5g32s"},
      {"q4_1", "tok4g32"},  {"q4_0", "tok4g32s"},
  };
  return kTypes;
}

}  // namespace kvant
