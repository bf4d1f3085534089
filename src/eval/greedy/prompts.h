// Reads the prompts on which greedy generations are compared, and encodes them for a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

class Tokenizer;

// Parses the text of a file with one prompt per line. A prompt is a JSON object with a "prompt" or a
// "question", or else the line itself. Empty lines are skipped. Returns an error if a line starts with '{'
// but holds no such object, or if no prompt remains.
Result<std::vector<std::string>> parse_prompts(const std::string& text);

// Encodes each prompt as tokens, inside the model's chat template if the model has one. Returns an error if a
// prompt is not UTF-8, or if ChatTemplate::write fails.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const Tokenizer& tokenizer,
                                                              const std::vector<std::string>& prompts);

}  // namespace kvant
