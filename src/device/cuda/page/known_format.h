// Finds formats by name for the library's calls, which run for every layer of every step. A search therefore
// takes no lock, and only the first search for a name allocates memory.
#pragma once

#include <optional>

#include "format/format.h"

namespace kvant::cuda {

struct KnownFormat {
  const Format* format;
  std::optional<FormatDescription> description;  // empty if no kernel reads pages of the format
  bool has_constants;                            // whether the format has codebooks
};

// Returns the format called `name`, or null if there is none. The result lives as long as the program.
const KnownFormat* find_known_format(const char* name);

}  // namespace kvant::cuda
