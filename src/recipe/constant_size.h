// Computes the size of a plan's model constants, which tables show next to the bits of the cache.
#pragma once

#include <cstdint>

#include "recipe/plan.h"

namespace kvant {

// Returns the bytes of the model constants that writing and reading the plan's pages needs, over all layers,
// heads and sides. A constant counts once per model, whatever the number of sequences.
//
// Codebooks count in the precision that kernels read: INT8 with one F32 scale if the format has such a table,
// else F32. The transforms' scales, means and matrices, adapters of active corrections, and the scales of an
// INT8 tail count as F32.
//
// Sensitivities and priorities do not count, because nothing reads them after they have chosen the formats.
// Whatever follows from a seed or a formula does not count either: Hadamard matrices and signs, Lloyd-Max
// levels, trellis codes.
std::int64_t constant_bytes(const Plan& plan);

}  // namespace kvant
