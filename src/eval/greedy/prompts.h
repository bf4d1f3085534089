// Reads the prompts on which greedy generations are compared, and encodes them for a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class Tokenizer;

// Parses the text of a file with one prompt per line. A line that is a JSON object gives the member "prompt"
// or "question", and any other line is the prompt itself. Empty lines are skipped. Returns an error if a line
// starts with '{' but does not contain such an object, or if no prompt remains.
Result<std::vector<std::string>> parse_prompts(const std::string& text);

// Encodes each prompt as tokens, inside the model's chat template if the model has one. Returns an error if a
// prompt is not UTF-8, or if ChatTemplate::write fails.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const Tokenizer& tokenizer,
                                                              const std::vector<std::string>& prompts);

}  // namespace kvant
