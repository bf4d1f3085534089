// Messages for a command line that cannot be understood.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvant {

// Says what is wrong with the command line, what was probably meant and which help says more. `words` are
// those of the command line, in order.
std::string option_error(const CLI::App& program, const CLI::ParseError& wrong,
                         const std::vector<std::string>& words);

}  // namespace kvant
