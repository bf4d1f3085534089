// Finds formats by name for the library's calls. Calls are made for every layer of every step. So a search
// takes no lock, and allocates no memory once a name has been looked up.
#pragma once

#include <optional>

#include "format/format.h"

namespace kvant::cuda {

struct KnownFormat {
  const Format* format;
  std::optional<FormatDescription> description;  // Nothing means that no kernel reads the format's pages.
  bool has_constants;                            // whether the format has codebooks
};

// Returns the format called `name`, or null if there is none. The result lives as long as the program.
const KnownFormat* find_known_format(const char* name);

}  // namespace kvant::cuda
