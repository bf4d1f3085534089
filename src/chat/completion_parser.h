// Reads a model's completion while it comes: what is a thought, what is text, and what is a call of a tool.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace kvant {

// More of a tool call.
struct ToolCallPart {
  int index = 0;          // of the call in its completion
  std::string id, name;   // only with the first part of a call
  std::string arguments;  // JSON; all parts together are an object
};

// What more of a completion's text says.
struct AnswerDelta {
  std::string thought = {};  // before the text
  std::string text = {};
  std::vector<ToolCallPart> calls = {};
};

// ToolAnswer: reads a completion that may call tools, while the completion comes.
class ToolAnswer {
 public:
  virtual ~ToolAnswer() = default;
  virtual AnswerDelta add(const std::string& text) = 0;
  virtual AnswerDelta finish() = 0;  // after the last text: what was held back
  virtual bool has_calls() const = 0;
  // Whether the only call that is wanted is whole: nobody is told what the completion goes on with.
  virtual bool is_complete() const = 0;
};

// How completions of a request are read.
class ToolFormat {
 public:
  virtual ~ToolFormat() = default;
  virtual std::unique_ptr<ToolAnswer> read() const = 0;  // one completion
};

}  // namespace kvant
