// Writes the results of evaluate_limits() as JSON and as sentences.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/limits/limit_eval.h"

namespace kvant {

// Returns {"schema":"kvant.limits/1",..}, which docs/reference/json.md describes.
nlohmann::ordered_json limits_to_json(const LimitResult& result, const std::string& model);

// Returns text such as "holds up to 1024 tokens; at 2048: 4 of 6 kept". For a long answer, the text gives the
// number of tokens that agree with the reference at each context.
std::string limit_sentence(const LimitResult& result, const LimitRow& row, LimitKind kind);

}  // namespace kvant
