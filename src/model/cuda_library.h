// Loads libkvant_cuda, which lies next to the program. The library and CUDA are loaded only when a GPU is
// asked for.
#pragma once

#include "base/result.h"
#include "cache/page_device.h"

namespace kvant {

// Returns the library's functions, or an error if the library is missing or does not fit this program.
// kvant_supports, kvant_page_bytes and kvant_decode_kernel also work without a GPU, and then describe an
// H100.
Result<PageLibrary> load_page_library();

}  // namespace kvant
