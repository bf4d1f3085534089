// Writes the results of evaluate_retrieval() as JSON and as tables for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/retrieval/retrieval_eval.h"

namespace kvant {

// Returns {"schema":"kvant.retrieval/1",..}, which docs/reference/json.md describes.
nlohmann::ordered_json retrieval_to_json(const RetrievalResult& result, const std::string& model);

// Formats one table of recipes and tasks per context, one table for all contexts together, and one table of
// needles by depth.
std::string retrieval_table(const RetrievalResult& result);

}  // namespace kvant
