// Makes a fill-in-the-middle (FIM) prompt, in the form in which the model was trained to fill in the middle
// of a text. Editors use such prompts to complete code at the cursor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace kvant {

struct InfillText {
  std::string prefix, suffix;
  std::string start = {};  // the middle starts with this text
  struct File {
    std::string name, text;
  };
  std::vector<File> files = {};  // files whose texts precede the text in the prompt
};

// Returns the prompt, which consists of the files, the prefix and the suffix with their control tokens, and
// the token of the middle. Each file has its name if the model has a token for file names. The text of a
// control token inside the files, prefix or suffix stays text. Returns an error if the model has no FIM
// tokens, or a text is not UTF-8.
Result<std::vector<std::int32_t>> infill_prompt(const InfillText& text, const Tokenizer& tokenizer);

// Returns the stop texts for the middle: the texts of the model's FIM control tokens.
std::vector<std::string> infill_stops(const Tokenizer& tokenizer);

}  // namespace kvant
