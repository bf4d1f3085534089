// Parses a model's completion into thoughts, text and tool calls while the completion arrives. The interface
// hides the parser, so the server does not depend on llama.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace kvant {

// ToolCallPart is the next part of a tool call.
struct ToolCallPart {
  int index = 0;          // the number of the call within its completion, from 0
  std::string id, name;   // set only in the first part of a call
  std::string arguments;  // a piece of JSON; all parts together form an object
};

// AnswerDelta is what the newest text adds to a completion.
struct AnswerDelta {
  std::string thought = {};  // the thought comes before the text
  std::string text = {};
  std::vector<ToolCallPart> calls = {};
};

// ToolAnswer parses one completion while it arrives. The completion may have thoughts and tool calls.
class ToolAnswer {
 public:
  virtual ~ToolAnswer() = default;
  virtual AnswerDelta add(const std::string& text) = 0;
  // finish() is called after the last text, and returns the text that was held back. `was_cut` says that a
  // token limit ended the text. The beginning of a call without its name is then dropped.
  virtual AnswerDelta finish(bool was_cut) = 0;
  virtual bool has_calls() const = 0;  // a call has begun
  // Returns whether the request wants only one call and the call is complete. The rest of the completion is
  // then ignored.
  virtual bool is_complete() const = 0;
};

// ToolFormat makes parsers for the completions of a request.
class ToolFormat {
 public:
  virtual ~ToolFormat() = default;
  virtual std::unique_ptr<ToolAnswer> read() const = 0;  // returns a parser for one completion
};

}  // namespace kvant
