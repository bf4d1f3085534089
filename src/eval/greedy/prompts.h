// The prompts on which greedy generations are compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class Tokenizer;

// Parses the prompts of a file's text, one per line: JSON objects with a "prompt" or a "question", or else
// the lines themselves. Empty lines are skipped. It is an error if a line that starts with '{' is no such
// object, or if no line remains.
Result<std::vector<std::string>> parse_prompts(const std::string& text);

// Encodes each prompt as tokens, inside the model's chat template if it has one. Errors: a prompt is not
// UTF-8; see ChatTemplate::write.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const Tokenizer& tokenizer,
                                                              const std::vector<std::string>& prompts);

}  // namespace kvant
