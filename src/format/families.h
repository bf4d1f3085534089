// Declares `const FormatFamily& <family>_family()` for every line of formats.def. The registry and formats
// that build on another family include this header.
#pragma once

#include "format/format.h"

namespace kvant {

#define KVANT_FORMAT_FAMILY(family) const FormatFamily& family##_family();
#include "format/formats.def"
#undef KVANT_FORMAT_FAMILY

}  // namespace kvant
