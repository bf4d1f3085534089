// Reads a text file that a user names, such as a prompt. Every command treats standard input, byte order
// marks and empty files in this one way.
#pragma once

#include <string>

#include "base/result.h"

namespace kvant {

// Reads the whole file at `path`, without a byte order mark at its start; "-" stands for the standard input.
// Returns an error if the file cannot be read or is empty.
Result<std::string> read_text_file(const std::string& path);

}  // namespace kvant
