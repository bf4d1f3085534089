// Describes the codes of one side of a stored page for the kernels.
#pragma once

#include "device/cpu/kernels/byte_kernels.h"
#include "format/code_scheme.h"
#include "format/page_view.h"

namespace kvant::cpu {

// `scheme` must be the code scheme of the side's format.
CodePage code_page(const PageSide& side, const CodeScheme& scheme);

// Reads the page's parameters into the vectors of `parameters`.
void read_code_parameters(const PageSide& side, CodeParameters& parameters);

}  // namespace kvant::cpu
