// Prints warnings: what a user should know about a run that continues.
#pragma once

#include <string>

namespace kvant {

// Prints `message` as one line to the standard error stream.
void warn(const std::string& message);

}  // namespace kvant
