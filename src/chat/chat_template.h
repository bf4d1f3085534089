// ChatTemplate: a model's chat template, run as the program that it is (Jinja): what the prompt of a
// conversation is, what a completion may be, and how a completion's text is read.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/chat_text.h"
#include "chat/chat_tools.h"
#include "chat/completion_parser.h"
#include "chat/thinking_switch.h"
#include "model/grammar.h"
#include "model/tokenizer.h"

namespace kvant {

struct TemplatedChat {
  std::string prompt;
  std::vector<std::int32_t> tokens;  // of the prompt
  bool quotes_tokens = false;  // messages have control tokens as text: the text alone does not say its tokens
  GrammarRules grammar;
  std::string grammar_start;                 // of the prompt's end, what the grammar begins with
  std::vector<std::string> stops;            // that end an answer
  std::vector<std::int32_t> kept_tokens;     // control tokens by which the format is read
  std::shared_ptr<const ToolFormat> format;  // that completions are read by; null: a completion is text
};

class ChatTemplate {
 public:
  // Whether the model's file has one.
  static bool is_in(const Tokenizer& tokenizer);
  // file: Jinja; empty: the model's own. tokenizer outlives the template. Errors: there is none, or the
  // source is not Jinja.
  static Result<std::shared_ptr<const ChatTemplate>> open(const Tokenizer& tokenizer,
                                                          const std::string& file);
  // source: Jinja; empty: the model's own. name: for error messages, such as "the chat template".
  static Result<std::shared_ptr<const ChatTemplate>> make(const Tokenizer& tokenizer,
                                                          const std::string& source, const std::string& name);
  virtual ~ChatTemplate() = default;

  virtual bool has_tools() const = 0;
  // messages: as the OpenAI API has them, their content a text. values: an object of what else the template
  // may ask for. thinking: becomes such values, and says where thoughts go.
  virtual Result<TemplatedChat> apply(const nlohmann::ordered_json& messages, const ChatTools& tools,
                                      const nlohmann::ordered_json& values,
                                      const ThinkingOptions& thinking = {}) const = 0;
  // The prompt's text alone. Errors: see write_chat.
  virtual Result<ChatText> write(const nlohmann::ordered_json& messages) const = 0;
  // Its tokens from this byte on; from the start: with the model's BOS, once. Errors: see encode_chat.
  virtual Result<std::vector<std::int32_t>> encode(const ChatText& chat, std::size_t from = 0) const = 0;
};

}  // namespace kvant
