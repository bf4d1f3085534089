// Describes a task: problems that a model solves with one greedy completion each, and the judge of the
// completions.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chat/chat_history.h"
#include "chat/chat_template.h"
#include "eval/tasks/batch_generation.h"

namespace kvant {

struct TaskScore {
  bool is_right = false;
  // Says whether the completion has the form that the task asks for, such as a tool call. Tasks without such
  // a form leave the value false.
  bool is_valid = false;
  // Says why the completion could not be judged, such as a lack of memory. The text is usually empty.
  std::string fault;
};

struct TaskProblem {
  std::string id;
  BatchPrompt prompt;
  // Judges the text of a completion. Several threads may judge at the same time.
  std::function<TaskScore(const std::string& completion)> judge;
};

struct Task {
  std::string name;  // such as "gsm8k" or "bfcl-simple"
  int depth = 0;     // tokens of other text before the problem
  // Says whether the task scores the form of completions, too (TaskScore::is_valid).
  bool has_form = false;
  std::vector<TaskProblem> problems;
};

// Returns the lines of a file of JSON objects, one object a line, at most `most` of them. 0 means all. `name`
// names the file in errors.
Result<std::vector<nlohmann::ordered_json>> parse_json_lines(const std::string& text, const std::string& name,
                                                             int most);

// Renders a chat without tools as a prompt. An assistant's last message is the start of the completion.
Result<BatchPrompt> chat_prompt(const ChatTemplate& chat_template, const ChatHistory& history,
                                GenerationOptions options);

}  // namespace kvant
