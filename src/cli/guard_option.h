// Adds and parses --guard, which sets how often the quality guard checks a layer.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"

namespace kvant {

// Adds --guard [RATE]. Without a RATE the rate is 1/64.
void add_guard_option(CLI::App& command, std::string& rate);
// Returns N for the text "1/N", or 0 (no guard) for an empty string. The error for any other text says what
// is wrong.
Result<int> parse_guard(const std::string& rate);

}  // namespace kvant
