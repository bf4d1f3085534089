// kvant's own: K and V rotated by a Hadamard matrix and trellis-coded around the means of each page, four
// tokens of sink, and the bits spread over layers, heads and sides by what calibration found each to be worth
// (docs/lab has the measurements that led here). The tail and the sink are kept in 8 bits, in groups of 16
// with a minimum: larger or symmetric groups cost 2 to 6 % of kvant-4bit's divergence; what that saves went
// to the sealed pages. Where nothing was calibrated, k and v are what every layer and head gets: the ladder's
// best format within the budget.
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> kvant_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"kvant-4bit", Tier::product,
       "k=hadamard:tcq4,v=hadamard:tcq4,sink=4,tail=tok8g16,budget=4.52,ladder=tcq1+tcq2+tcq3+tcq4+tcq5+"
       "tcq6",
       "kvant: bits by layer, head and side, 4.5 on average"},
      {"kvant-3bit", Tier::product,
       "k=hadamard:tcq3,v=hadamard:tcq3,sink=4,tail=tok8g16,budget=3.51,ladder=tcq1+tcq2+tcq3+tcq4+tcq5+"
       "tcq6",
       "kvant: bits by layer, head and side, 3.5 on average"},
      {"kvant-2bit", Tier::product,
       "k=hadamard:tcq2,v=hadamard:tcq2,sink=4,tail=tok8g16,budget=2.49,ladder=tcq1+tcq2+tcq3+tcq4+tcq5+"
       "tcq6",
       "kvant: bits by layer, head and side, 2.5 on average"},
  };
  return kRecipes;
}

}  // namespace kvant
