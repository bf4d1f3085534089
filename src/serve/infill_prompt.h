// Makes the prompt with which a model fills in the middle of a text, as it was trained to (FIM).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace kvant {

struct InfillText {
  std::string prefix, suffix;
  std::string start = {};  // start of the middle
  struct File {
    std::string name, text;
  };
  std::vector<File> files = {};  // files that the model sees first
};

// Returns prefix and suffix with their control tokens, followed by the token of the middle. Files come first,
// each with its name if the model has a token for names. Control tokens inside the texts have no meaning.
// Errors: the model has no such tokens, or a text is not UTF-8.
Result<std::vector<std::int32_t>> infill_prompt(const InfillText& text, const Tokenizer& tokenizer);

// Returns the texts that end a middle: those of the model's control tokens for parts of the text.
std::vector<std::string> infill_stops(const Tokenizer& tokenizer);

}  // namespace kvant
