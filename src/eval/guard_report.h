// Writes the findings of the quality guard as sentences and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/quality_guard.h"

namespace kvant {

// Returns a summary of at most two lines.
std::string guard_summary(const GuardReport& report);
// Returns the findings of every layer, and the warning, which is null if there is none. `recipe` is the text
// that --kv takes.
nlohmann::ordered_json guard_to_json(const GuardReport& report, const std::string& recipe);

}  // namespace kvant
