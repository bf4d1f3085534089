// --guard: how often the quality guard checks a layer.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// Adds --guard [RATE]; without a rate it is 1/64.
void add_guard_option(CLI::App& command, std::string& rate);
// The N of the rate 1/N; 0 for an empty text: no guard. An error names what is wrong with another text.
Result<int> parse_guard(const std::string& rate);

}  // namespace kvant
