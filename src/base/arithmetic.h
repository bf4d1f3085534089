// Enumerates the arithmetic of attention that recipes choose from.
#pragma once

#include <cstdint>

namespace kvant {

// Chooses the exponential of the softmax: the exact function, or the approximation of TurboAttention
// (base/sas.h).
enum class Softmax : std::uint8_t {
  exact,
  // Uses a table and a cubic polynomial for weights, and the exact exponential for rescaling.
  sas,
  // Uses SAS also for rescaling, as Algorithm 1 prints it.
  sas_paper,
};
// Chooses the arithmetic of q.K and P.V.
enum class Products : std::uint8_t { real, integer };

}  // namespace kvant
