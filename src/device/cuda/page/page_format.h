// The pages of a format in GPU memory: what they hold, and in which order.
#pragma once

#include "device/cuda/page/page_layout.h"
#include "format/page_description.h"

namespace kvant::cuda {

struct PageFormat : PageDescription {
  CodeLayout layout{};  // of codes, if there are any
};

// The levels of codes of values [d]; none, unless there are levels. `format` is known.
void set_unit_levels(const char* format, int d, float* levels);

// The format called `name`, if kernels can read its pages at heads of `d` channels.
bool find_page_format(const char* name, int d, PageFormat& format);

}  // namespace kvant::cuda
