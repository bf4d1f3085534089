// Reports RetrievalEval's results as JSON and for a terminal.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/retrieval/retrieval_eval.h"

namespace kvant {

// Returns {"schema":"kvant.retrieval/1",..}: see docs/reference/json.md.
nlohmann::ordered_json retrieval_to_json(const RetrievalResult& result, const std::string& model);

// Formats a table of recipes and tasks for each context and for all together, and one of needles by depth.
std::string retrieval_table(const RetrievalResult& result);

}  // namespace kvant
