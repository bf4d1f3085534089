// The prompts that greedy generations are compared on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class Tokenizer;

// Prompts of a file's text, one a line: JSON objects with a "prompt" or a "question", or else the lines
// themselves. Empty lines are left out. An error where a line that starts with '{' is no such object, or no
// line is left.
Result<std::vector<std::string>> parse_prompts(const std::string& text);

// A prompt's tokens, inside the model's chat template if it has one. An error when it is not UTF-8.
Result<std::vector<std::int32_t>> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace kvant
