// Describes the codes of one side of a stored page for the kernels.
#pragma once

#include "attention/cpu/byte_kernels.h"
#include "cache/head_state.h"
#include "format/code_scheme.h"

namespace kvant::cpu {

// `scheme` must be the code scheme of the side's format.
CodePage code_page(const PageSide& side, const CodeScheme& scheme);

// Reads the page's parameters into the vectors of `parameters`.
void read_code_parameters(const PageSide& side, CodeParameters& parameters);

}  // namespace kvant::cpu
