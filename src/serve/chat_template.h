// ChatTemplate: a chat template run as the program it is (Jinja), with tools, by llama.cpp's library for
// chats: it says what the prompt is, what an answer may be, and how an answer's text is read.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/grammar.h"
#include "model/tokenizer.h"
#include "serve/schema_check.h"

namespace kvant {

// More of a tool call.
struct ToolCallPart {
  int index = 0;          // of the call in its answer
  std::string id, name;   // only with the first part of a call
  std::string arguments;  // JSON; all parts together are an object
};

// What more of an answer's text says.
struct AnswerDelta {
  std::string text;
  std::vector<ToolCallPart> calls;
};

// ToolAnswer: reads an answer that may call tools, while it comes.
class ToolAnswer {
 public:
  virtual ~ToolAnswer() = default;
  virtual AnswerDelta add(const std::string& text) = 0;
  virtual AnswerDelta finish() = 0;  // after the last text: what was held back
  virtual bool has_calls() const = 0;
  // Whether the only call that is wanted is whole: what the answer goes on with, nobody is told.
  virtual bool is_complete() const = 0;
};

// How answers to a request are read.
class ToolFormat {
 public:
  virtual ~ToolFormat() = default;
  virtual std::unique_ptr<ToolAnswer> read() const = 0;  // an answer
};

struct ChatTools {
  enum class Choice { automatic, required, none };
  nlohmann::ordered_json functions = nlohmann::ordered_json::array();  // as the OpenAI API has them
  Choice choice = Choice::automatic;
  std::string only;              // required: this one; empty: any
  SchemaSum schemas;             // of their arguments
  std::optional<bool> parallel;  // several calls in an answer; not said: as the template has it

  bool may_be_called() const { return !functions.empty() && choice != Choice::none; }
};

struct TemplatedChat {
  std::string prompt;
  GrammarRules grammar;
  std::string grammar_start;                 // of the prompt's end, what the grammar begins with
  std::vector<std::string> stops;            // that end an answer
  std::shared_ptr<const ToolFormat> format;  // null: an answer is text
};

class ChatTemplate {
 public:
  // source: Jinja; empty: the model's own. tokenizer outlives it. Errors: no model, or not a template.
  static Result<std::shared_ptr<const ChatTemplate>> make(const Tokenizer& tokenizer,
                                                          const std::string& source);
  virtual ~ChatTemplate() = default;

  virtual bool is_there() const = 0;  // else a common one stands in
  virtual bool replaces_the_models() const = 0;
  virtual bool has_tools() const = 0;
  // messages: as the OpenAI API has them, their content a text. values: an object of what else the template
  // may ask for, such as enable_thinking.
  virtual Result<TemplatedChat> apply(const nlohmann::ordered_json& messages, const ChatTools& tools,
                                      const nlohmann::ordered_json& values) const = 0;
};

}  // namespace kvant
