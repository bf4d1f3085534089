// Makes tasks of the Berkeley Function Calling Leaderboard (BFCL v4, Patil et al. 2025). The model gets one
// question and must reply with tool calls. The prompt comes from the model's own chat template, and the
// engine's own parser reads the calls. Nothing forces a completion to be a call.
#pragma once

#include <string>

#include "eval/tasks/task.h"

namespace kvant {

struct BfclOptions {
  std::string category;  // "simple", "multiple" or "parallel"
  int most = 0;          // at most this many problems; 0 means all
  int max_tokens = 512;
  // This text is part of an earlier turn of the chat. The text has `depth` tokens.
  std::string before;
  int depth = 0;
};

// Makes the task of a category. `questions` and `answers` are the contents of the files
// `BFCL_v4_CATEGORY.json` in the package's folder `data` and in its folder `data/possible_answer`. Returns an
// error if a file has a different form, or if the chat template has no tools.
Result<Task> make_bfcl(const ChatTemplate& chat_template, const std::string& questions,
                       const std::string& answers, const BfclOptions& options);

// Returns the functions of a problem as tools of the OpenAI API. Types of BFCL become types of JSON schemas,
// as in BFCL's `convert_to_tool`.
nlohmann::ordered_json bfcl_tools(const nlohmann::ordered_json& functions);

// Returns the beginning of `text` that has at most n_tokens tokens, repeated if the text is shorter.
Result<std::string> text_of_tokens(const Tokenizer& tokenizer, const std::string& text, int n_tokens);

}  // namespace kvant
