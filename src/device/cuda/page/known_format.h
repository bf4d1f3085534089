// Formats by their names, as calls of the library need them: found without a lock, and without taking memory
// once a name has been asked for.
#pragma once

#include <optional>

#include "format/format.h"

namespace kvant::cuda {

struct KnownFormat {
  const Format* format;
  std::optional<FormatDescription> description;  // none: no kernel reads its pages
  bool has_constants;                            // codebooks
};

// Null if there is no format of this name. What is found lives as long as the program.
const KnownFormat* find_known_format(const char* name);

}  // namespace kvant::cuda
