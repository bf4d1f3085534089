// The codes of one side of a stored page, as kernels are given them.
#pragma once

#include "attention/cpu/byte_kernels.h"
#include "cache/head_state.h"
#include "format/code_scheme.h"

namespace kvant::cpu {

// `scheme` is that of the side's format.
CodePage code_page(const PageSide& side, const CodeScheme& scheme);

// The page's parameters, in the vectors of `parameters`.
void read_code_parameters(const PageSide& side, CodeParameters& parameters);

}  // namespace kvant::cpu
