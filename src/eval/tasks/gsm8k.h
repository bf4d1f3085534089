// Makes the task of GSM8K (Cobbe et al. 2021), which has word problems whose result is a number. The judge
// compares the final number of a completion with the number of the data.
#pragma once

#include <optional>
#include <string>

#include "eval/tasks/task.h"

namespace kvant {

// Makes the task of the first `most` problems of the data; 0 means all. `text` is the content of
// `gsm8k-test.jsonl`, with a "question" and an "answer" in each line. An answer ends with "#### NUMBER".
Result<Task> make_gsm8k(const ChatTemplate& chat_template, const std::string& text, int most, int max_tokens);

// Returns the number that a completion ends with. The number is the one that the last \boxed{...} states,
// else the one that follows the last "####", else the last one of the text. Commas between digits are
// removed.
std::optional<double> final_number(const std::string& completion);

}  // namespace kvant
