// kvant's own: K and V rotated by a Hadamard matrix and trellis-coded around the means of each page, four
// tokens of sink, errors of K shaped by the queries that calibration saw, and the bits spread over layers,
// heads and sides by what it found each to be worth (docs/lab has the measurements that led here). The tail
// and the sink are kept in 8 bits, in groups of 16 with a minimum: larger or symmetric groups cost 2 to 6 %
// of kvant-4bit's divergence; what that saves went to the sealed pages. Budgets leave room for the tail: all
// together stay within half a bit above the name's at 8192 tokens. Where nothing was calibrated, k and v are
// what every layer and head gets: the ladder's best format within the budget.
#include "recipe/builtin.h"

#define KVANT_REST "sink=4,encode=shaped,tail=tok8g16,ladder=tcq1+tcq2+tcq3+tcq4+tcq5+tcq6"

namespace kvant {

std::span<const BuiltinRecipe> kvant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"kvant-4bit", Tier::product, "k=hadamard:tcq4,v=hadamard:tcq4,budget=4.49," KVANT_REST,
       "kvant: bits by layer, head and side, 4.5 on average"},
      {"kvant-3bit", Tier::product, "k=hadamard:tcq3,v=hadamard:tcq3,budget=3.48," KVANT_REST,
       "kvant: bits by layer, head and side, 3.5 on average"},
      {"kvant-2bit", Tier::product, "k=hadamard:tcq2,v=hadamard:tcq2,budget=2.48," KVANT_REST,
       "kvant: bits by layer, head and side, 2.5 on average"},
      {"kvant-1.5bit", Tier::product, "k=hadamard:tcq1,v=hadamard:tcq1,budget=1.67," KVANT_REST,
       "kvant: bits by layer, head and side, 1.7 on average, for calibrated models"},
  };
  return kRecipes;
}

}  // namespace kvant

#undef KVANT_REST
