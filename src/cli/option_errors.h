// What a user reads whose command line can't be understood.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvant {

// What is wrong with the command line, what was probably meant, and which help says more. words: those of the
// command line, in its order.
std::string option_error(const CLI::App& program, const CLI::ParseError& wrong,
                         const std::vector<std::string>& words);

}  // namespace kvant
