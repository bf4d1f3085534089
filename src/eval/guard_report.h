// Reports the quality guard's findings for people and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/quality_guard.h"

namespace kvant {

// Returns two lines.
std::string guard_summary(const GuardReport& report);
// Includes the warning, which may be null, and every layer. recipe: see guard_warning.
nlohmann::ordered_json guard_to_json(const GuardReport& report, const std::string& recipe);

}  // namespace kvant
