// The pages of a format in GPU memory: their contents and their layout.
#pragma once

#include "device/cuda/page/page_layout.h"
#include "format/page_description.h"

namespace kvant::cuda {

struct PageFormat : PageDescription {
  CodeLayout layout{};  // of codes, if there are any
};

// Sets the levels of codes for values [d]; does nothing if the format has no levels. `format` must be known.
void set_unit_levels(const char* format, int d, float* levels);

// Finds the format called `name`, if kernels can read its pages at heads of `d` channels.
bool find_page_format(const char* name, int d, PageFormat& format);

}  // namespace kvant::cuda
