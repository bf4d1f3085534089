// The prompt that has a model fill in the middle of a text, as the model was trained to (FIM).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace kvant {

struct InfillText {
  std::string prefix, suffix;
  std::string start = {};  // of the middle
  struct File {
    std::string name, text;
  };
  std::vector<File> files = {};  // that the model sees before
};

// PREFIX and SUFFIX with their tokens, and the token of the middle. Files come before, each with its name
// where the model has a token for that. All texts are text: control tokens in them are none. The error: the
// model has no such tokens, or a text is not UTF-8.
Result<std::vector<std::int32_t>> infill_prompt(const InfillText& text, const Tokenizer& tokenizer);

// The texts that end a middle: of the model's tokens for the parts of the text. A middle has none of them.
std::vector<std::string> infill_stops(const Tokenizer& tokenizer);

}  // namespace kvant
