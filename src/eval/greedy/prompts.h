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

// The prompts' tokens, each prompt inside the model's chat template if the model has one. Errors: a prompt is
// not UTF-8; see ChatTemplate::write.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const Tokenizer& tokenizer,
                                                              const std::vector<std::string>& prompts);

}  // namespace kvant
