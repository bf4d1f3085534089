// What LimitEval measured, as JSON and in words.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "eval/limits/limit_eval.h"

namespace kvant {

// {"schema":"kvant.limits/1",..}: see docs/reference/json.md.
nlohmann::ordered_json limits_to_json(const LimitResult& result, const std::string& model);

// "holds up to 1024 tokens; at 2048, 4 of bf16's 6 are left"; of a long answer, how much of it each context
// leaves.
std::string limit_sentence(const LimitResult& result, const LimitRow& row, LimitKind kind);

}  // namespace kvant
