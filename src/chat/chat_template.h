// ChatTemplate: a model's chat template, run as the Jinja program that it is. It gives the prompt of a
// conversation, the grammar of a completion, and the way to parse the completion's text.
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
  std::vector<std::int32_t> tokens;  // the prompt's tokens
  // messages quote control tokens, so the text alone does not determine the tokens
  bool quotes_tokens = false;
  GrammarRules grammar;
  std::string grammar_start;                 // the part of the prompt's end that the grammar begins with
  std::vector<std::string> stops;            // texts that end an answer
  std::vector<std::int32_t> kept_tokens;     // control tokens that the format's parser needs
  std::shared_ptr<const ToolFormat> format;  // parses completions; null: a completion is plain text
};

class ChatTemplate {
 public:
  // Returns whether the model's file has a chat template.
  static bool is_in(const Tokenizer& tokenizer);
  // file: a Jinja file; empty: the model's own template. tokenizer must outlive the template. Errors: there
  // is no template, or it is not Jinja.
  static Result<std::shared_ptr<const ChatTemplate>> open(const Tokenizer& tokenizer,
                                                          const std::string& file);
  // source: Jinja text; empty: the model's own template. name: for error messages, such as "the chat
  // template".
  static Result<std::shared_ptr<const ChatTemplate>> make(const Tokenizer& tokenizer,
                                                          const std::string& source, const std::string& name);
  virtual ~ChatTemplate() = default;

  virtual bool has_tools() const = 0;
  // messages: as the OpenAI API has them, with text as content. values: an object of further template
  // variables. thinking: is translated into such values, and says where thoughts go.
  virtual Result<TemplatedChat> apply(const nlohmann::ordered_json& messages, const ChatTools& tools,
                                      const nlohmann::ordered_json& values,
                                      const ThinkingOptions& thinking = {}) const = 0;
  // Returns only the prompt's text. Errors: see write_chat.
  virtual Result<ChatText> write(const nlohmann::ordered_json& messages) const = 0;
  // Returns the tokens of the prompt from this byte on; if it is 0, they begin with one BOS of the model.
  // Errors: see encode_chat.
  virtual Result<std::vector<std::int32_t>> encode(const ChatText& chat, std::size_t from = 0) const = 0;
};

}  // namespace kvant
