// The size of a plan's model constants.
#pragma once

#include <cstdint>

#include "recipe/plan.h"

namespace kvant {

// Returns the bytes of the model constants that the plan's pages are written and read with, over all layers,
// heads and sides. Codebooks count in the precision that kernels read: INT8 with one F32 scale if the format
// has such a table, else F32. Counted as F32: the transforms' scales, means and matrices, adapters of active
// corrections, and the scales of an INT8 tail. Each counts once per model, whatever the number of sequences.
// Not counted: sensitivities and priorities, which are not read after they have chosen the formats, and
// everything that follows from a seed or a formula (Hadamard matrices and signs, Lloyd-Max levels, trellis
// codes).
std::int64_t constant_bytes(const Plan& plan);

}  // namespace kvant
