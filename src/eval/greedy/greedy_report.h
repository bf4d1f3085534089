// Writes the results of evaluate_greedy() as JSON and as a table for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/greedy/greedy_eval.h"

namespace kvant {

// Returns {"schema":"kvant.greedy/2",..}, which docs/reference/json.md describes.
nlohmann::ordered_json greedy_to_json(const GreedyResult& result, const std::string& model);
std::string greedy_table(const GreedyResult& result);

}  // namespace kvant
