// Parses a model's completion while it arrives into thoughts, text and tool calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace kvant {

// The next part of a tool call.
struct ToolCallPart {
  int index = 0;          // index of the call in its completion
  std::string id, name;   // set only in the first part of a call
  std::string arguments;  // a piece of JSON; all parts together form an object
};

// What the newest text adds to an answer.
struct AnswerDelta {
  std::string thought = {};  // comes before the text
  std::string text = {};
  std::vector<ToolCallPart> calls = {};
};

// ToolAnswer: parses one completion that may call tools, while it arrives.
class ToolAnswer {
 public:
  virtual ~ToolAnswer() = default;
  virtual AnswerDelta add(const std::string& text) = 0;
  virtual AnswerDelta finish() = 0;  // after the last text: returns what was held back
  virtual bool has_calls() const = 0;
  // Whether only one call is wanted and it is complete. The rest of the completion is then ignored.
  virtual bool is_complete() const = 0;
};

// Parses the completions of a request.
class ToolFormat {
 public:
  virtual ~ToolFormat() = default;
  virtual std::unique_ptr<ToolAnswer> read() const = 0;  // one completion
};

}  // namespace kvant
