// Prints warnings, which tell a user what to know about a run that continues. All warnings have one form on
// the standard error stream.
#pragma once

#include <string>

namespace kvant {

// Prints `message` as one line to the standard error stream.
void warn(const std::string& message);

}  // namespace kvant
