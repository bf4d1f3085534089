// ChatTemplate: a chat template run as the program it is (Jinja), with tools, by llama.cpp's library for
// chats: it says what the prompt is, what an answer may be, and how an answer's text is read.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/chat_tools.h"
#include "chat/completion_parser.h"
#include "chat/thinking_switch.h"
#include "model/grammar.h"
#include "model/tokenizer.h"

namespace kvant {

struct TemplatedChat {
  std::string prompt;
  GrammarRules grammar;
  std::string grammar_start;                 // of the prompt's end, what the grammar begins with
  std::vector<std::string> stops;            // that end an answer
  std::shared_ptr<const ToolFormat> format;  // that completions are read by
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
  // may ask for. thinking: becomes such values, and says where thoughts go.
  virtual Result<TemplatedChat> apply(const nlohmann::ordered_json& messages, const ChatTools& tools,
                                      const nlohmann::ordered_json& values,
                                      const ThinkingOptions& thinking = {}) const = 0;
};

}  // namespace kvant
