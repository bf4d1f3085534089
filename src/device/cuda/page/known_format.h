// Finds formats by name for the library's calls, without a lock, and without allocating once a name has been
// looked up.
#pragma once

#include <optional>

#include "format/format.h"

namespace kvant::cuda {

struct KnownFormat {
  const Format* format;
  std::optional<FormatDescription> description;  // none: no kernel reads its pages
  bool has_constants;                            // whether it has codebooks
};

// Returns null if there is no format of this name. The result lives as long as the program.
const KnownFormat* find_known_format(const char* name);

}  // namespace kvant::cuda
