// How large the model constants of a plan are.
#pragma once

#include <cstdint>

#include "recipe/plan.h"

namespace kvant {

// Bytes of the model constants that pages of the plan are written and read with, over all layers, heads and
// sides: codebooks in the precision in which kernels read them (INT8 with one F32 scale where the format has
// such a table, else F32), and in F32 the transforms' scales, means and matrices, adapters of corrections
// that are on, the scales of an INT8 tail. Once for a model, whatever the number of sequences. Not counted:
// sensitivities and priorities, which chose the formats and are not read again; what follows from a seed or a
// formula (Hadamard matrices and signs, Lloyd-Max levels, trellis codes).
std::int64_t constant_bytes(const Plan& plan);

}  // namespace kvant
