// Writes the results of evaluate_drift() as JSON and as a table for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/greedy/drift_eval.h"

namespace kvant {

// Returns {"schema":"kvant.drift/1",..}, which docs/reference/json.md describes.
nlohmann::ordered_json drift_to_json(const DriftResult& result, const std::string& model);
std::string drift_table(const DriftResult& result);

}  // namespace kvant
