// Reading a text that a user names.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// The whole file at `path`, without a byte order mark at its start; "-": the standard input. Errors: it
// cannot be read, or is empty.
Result<std::string> read_text_file(const std::string& path);

}  // namespace kvant
