// VecInfer uses product quantization of K and V with one codebook for each (layer, KV head, side). Smoothing
// divides K's outlier channels by lambda = sqrt(max |K|). A Hadamard rotation then spreads the outliers,
// which makes sub-vectors of all channels similar (sections 3.2, 3.3; Algorithm 1). V is quantized without a
// transform. The newest 128 tokens stay unquantized, as in all experiments of the paper (section 4.1).
//
// A recipe's name gives the average code width of K and V in bits. The pairs of widths come from Tables 2 and
// 8; r2 is the pair of the reasoning models in Table 3. The sink is kvant's addition. Without a sink the
// codebooks spend their centroids on the first token, and fit the first tokens of other texts badly
// (docs/quality.md).
#include "recipe/builtin.h"

namespace kvant {

std::span<const BuiltinRecipe> vecinfer_recipes() {
  static constexpr BuiltinRecipe kRecipes[] = {
      {"vecinfer-4bit", Tier::product, "k=smooth+hadamard:vq-d2b8,v=vq-d2b8,window=128,sink=4",
       "VecInfer: smoothed and rotated K, codebooks, 4 bits"},
      {"vecinfer-3bit", Tier::product, "k=smooth+hadamard:vq-d4b12,v=vq-d4b12,window=128,sink=4",
       "VecInfer, 3 bits"},
      {"vecinfer-2bit", Tier::product, "k=smooth+hadamard:vq-d4b8,v=vq-d4b8,window=128,sink=4",
       "VecInfer, 2 bits"},
      {"vecinfer-r2", Tier::product, "k=smooth+hadamard:vq-d4b10,v=vq-d8b12,window=128,sink=4",
       "VecInfer, K 2.5 and V 1.5 bits"},
      {"vecinfer-1.5bit", Tier::product, "k=smooth+hadamard:vq-d8b12,v=vq-d8b12,window=128,sink=4",
       "VecInfer, 1.5 bits"},
      {"vecinfer-1.25bit", Tier::product, "k=smooth+hadamard:vq-d8b12,v=vq-d8b8,window=128,sink=4",
       "VecInfer, K 1.5 and V 1 bits"},
  };
  return kRecipes;
}

}  // namespace kvant
