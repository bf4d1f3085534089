// --guard sets how often the quality guard checks a layer.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// Adds --guard [RATE]. The rate is 1/64 if it is left out.
void add_guard_option(CLI::App& command, std::string& rate);
// Returns the N of the rate 1/N, or 0 (no guard) for an empty text. An error says what is wrong with any
// other text.
Result<int> parse_guard(const std::string& rate);

}  // namespace kvant
