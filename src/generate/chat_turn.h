// The next turn of a chat whose earlier turns are known as tokens only.
#pragma once

#include <string>

#include "base/result.h"
#include "model/tokenizer.h"

namespace kvant {

// What the model's chat template has between the text of an answer and the next one, with `message` as the
// user's: the end of the answer's turn, the user's turn, the beginning of an answer. An error: there is no
// template that is known, or its text depends on more than the turns before, so that none can just go on.
Result<std::string> next_turn(const Tokenizer& tokenizer, const std::string& message);

}  // namespace kvant
