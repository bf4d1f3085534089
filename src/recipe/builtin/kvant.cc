// Lists kvant's own calibrated recipes; docs/lab has the measurements that led to them. A Hadamard matrix
// rotates K and V, and a trellis codes their differences from the means of each page. Four sink tokens stay
// unquantized. Codes of K minimize the error of the scores of calibrated queries. Layers, heads and sides get
// bits by their calibrated sensitivity.
//
// Tail and sink are BF16. An 8-bit tail would subtract no page mean. On models with large constant channels
// of K (Qwen2's biases), an 8-bit tail more than doubled the divergence of kvant-4bit. Without calibration,
// all layers and heads get the formats `k` and `v`, and each recipe names the ladder's best format within
// its budget there.
#include "recipe/builtin.h"

#define KVANT_REST "sink=4,encode=shaped,ladder=tcq1+tcq2+tcq3+tcq4+tcq5+tcq6"

namespace kvant {

std::span<const BuiltinRecipe> kvant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"kvant-4bit", Tier::product, "k=hadamard:tcq4,v=hadamard:tcq4,budget=4.49," KVANT_REST,
       "kvant: bits allocated by layer, head and side, 4.5 on average"},
      {"kvant-3bit", Tier::product, "k=hadamard:tcq3,v=hadamard:tcq3,budget=3.48," KVANT_REST,
       "kvant: bits allocated by layer, head and side, 3.5 on average"},
      {"kvant-2bit", Tier::product, "k=hadamard:tcq2,v=hadamard:tcq2,budget=2.48," KVANT_REST,
       "kvant: bits allocated by layer, head and side, 2.5 on average"},
      {"kvant-1.5bit", Tier::product, "k=hadamard:tcq1,v=hadamard:tcq1,budget=1.67," KVANT_REST,
       "kvant: bits allocated by layer, head and side, 1.7 on average, for calibrated models"},
  };
  return kRecipes;
}

}  // namespace kvant

#undef KVANT_REST
