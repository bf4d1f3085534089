// Compares tool calls with the right calls of the Berkeley Function Calling Leaderboard (BFCL, Patil et al.
// 2025). The rules are those of `ast_checker.py` in the package `bfcl-eval` for calls in Python's types.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvant {

// Holds a call that a model has made. `arguments` is a JSON object.
struct MadeCall {
  std::string name;
  nlohmann::ordered_json arguments;
};

// Returns whether the calls are right. `functions` are the offered functions with BFCL's own types ("dict",
// "float", "tuple", "any"). `answers` has one object per call, {NAME: {PARAMETER: [VALUE..]}}, with all
// values that count as right, and "" if the parameter may be left out. The order of calls does not matter.
// Numbers of equal value are equal, and texts are compared without case, spaces and some punctuation.
bool calls_match(const std::vector<MadeCall>& calls, const nlohmann::ordered_json& functions,
                 const nlohmann::ordered_json& answers);

// Returns the function's name with underscores for dots, because names of tools may not have dots.
std::string tool_name(const std::string& function);

}  // namespace kvant
