// LibraryAttention is libkvant_cpu's contender in the attention benchmark, with the formats of a recipe.
#pragma once

#include <memory>

#include "bench/attention_contender.h"
#include "recipe/plan.h"

namespace kvant {

// The timed part is kvant_decode_attention with the new token's rows: append and attend of each layer.
// Pages hold the same random tokens throughout.
class LibraryAttention : public AttentionContender {
 public:
  // Returns an error if formats differ by head or have codebooks, if a transform is not `hadamard`, or if
  // kvant_supports refuses the plan.
  static Result<std::unique_ptr<LibraryAttention>> make(std::shared_ptr<const Plan> plan, int context);
};

}  // namespace kvant
