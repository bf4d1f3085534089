// ChatTemplate runs a model's chat template as a Jinja program. The template gives the prompt of a
// conversation, the grammar of the completion, and the way to parse the completion's text.
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
  std::vector<std::int32_t> tokens;
  // true if messages quote the texts of control tokens, so the prompt's text alone does not determine its
  // tokens
  bool quotes_tokens = false;
  GrammarRules grammar;
  std::string grammar_start;                 // the end of the prompt, with which the grammar begins
  std::vector<std::string> stops;            // texts that end the completion
  std::vector<std::int32_t> kept_tokens;     // control tokens that the parser of the format needs in the text
  std::shared_ptr<const ToolFormat> format;  // parses completions; if null, a completion is plain text
};

class ChatTemplate {
 public:
  // Returns whether the model's file has a chat template.
  static bool is_in(const Tokenizer& tokenizer);
  // Opens a chat template from a file or from the model. `file` names a Jinja file. An empty name selects the
  // model's own template. `tokenizer` must outlive the template. Returns an error if there is no template, or
  // if it is not Jinja.
  static Result<std::shared_ptr<const ChatTemplate>> open(const Tokenizer& tokenizer,
                                                          const std::string& file);
  // Makes a chat template from a text. `source` is the text of a Jinja template. An empty string selects the
  // model's own template. Error messages call the template `name`, such as "the chat template".
  static Result<std::shared_ptr<const ChatTemplate>> make(const Tokenizer& tokenizer,
                                                          const std::string& source, const std::string& name);
  virtual ~ChatTemplate() = default;

  virtual bool has_tools() const = 0;
  // Renders a chat. `messages` have the OpenAI API's format, with texts as content. `values` is an object of
  // further template variables. `thinking` adds variables to `values` under the template's own names, and
  // says where thoughts go.
  virtual Result<TemplatedChat> apply(const nlohmann::ordered_json& messages, const ChatTools& tools,
                                      const nlohmann::ordered_json& values,
                                      const ThinkingOptions& thinking = {}) const = 0;
  // Returns only the text of the prompt. Returns the errors of write_chat().
  virtual Result<ChatText> write(const nlohmann::ordered_json& messages) const = 0;
  // Returns the tokens of the prompt's text from byte `from` on. With from = 0, the tokens begin with one BOS
  // token, if the model has it. Returns the errors of encode_chat().
  virtual Result<std::vector<std::int32_t>> encode(const ChatText& chat, std::size_t from = 0) const = 0;
};

}  // namespace kvant
