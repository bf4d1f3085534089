// Makes the task of HumanEval (Chen et al. 2021), which has Python functions to write from a description. The
// judge runs the model's program in a sandbox, with the tests of the data.
#pragma once

#include <string>

#include "eval/tasks/task.h"

namespace kvant {

// Makes the task of the first `most` problems of the data; 0 means all. `text` is the content of
// `HumanEval.jsonl`. The chat asks as EvalPlus (Liu et al. 2023) does: the model's turn begins with a
// sentence and an open block of code. Returns an error if this system cannot run the programs in the sandbox.
Result<Task> make_human_eval(const ChatTemplate& chat_template, const std::string& text, int most,
                             int max_tokens);

// Returns whether the program of a completion passes the tests. `record` is a problem of the data. The
// program is the problem's own text, then the imports, definitions and assignments of the completion, then
// the tests. A program that is too long fails. Returns an error if the program cannot run.
Result<bool> passes_tests(const nlohmann::ordered_json& record, const std::string& completion);

}  // namespace kvant
