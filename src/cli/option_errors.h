// Writes the error messages for a command line that the program cannot understand.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvant {

// Says what is wrong with the command line, what the user probably meant, and which help to read. `words` are
// the words of the command line in their order, as CLI11 got them. `typed` are the same words as the user
// typed them.
std::string option_error(const CLI::App& program, const CLI::ParseError& wrong,
                         const std::vector<std::string>& words, const std::vector<std::string>& typed);

}  // namespace kvant
