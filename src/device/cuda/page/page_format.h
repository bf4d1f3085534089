// PageFormat holds the contents and the layout of a format's pages in GPU memory. Kernels and their launches
// know a format only by this structure.
#pragma once

#include "device/cuda/page/page_layout.h"
#include "format/page_description.h"

namespace kvant::cuda {

struct PageFormat : PageDescription {
  CodeLayout layout{};  // layout of the codes, if the format has codes
};

// Sets `levels` to the levels of the format's codes for heads of `d` channels. If the format has no levels,
// the function does nothing. `format` must be the name of a known format.
void set_unit_levels(const char* format, int d, float* levels);

// Finds the format called `name`. Returns false if kernels cannot read its pages for heads of `d` channels.
bool find_page_format(const char* name, int d, PageFormat& format);

}  // namespace kvant::cuda
