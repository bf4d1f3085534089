// What the quality guard found, for people and for JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/quality_guard.h"

namespace kvant {

// Two lines.
std::string guard_summary(const GuardReport& report);
// With the warning, null where there is none, and every layer. recipe: see guard_warning.
nlohmann::ordered_json guard_to_json(const GuardReport& report, const std::string& recipe);

}  // namespace kvant
