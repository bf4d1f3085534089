// Renders a conversation as the text of a prompt. A user must not be able to forge a turn by quoting a
// control token. The text therefore comes with the places where messages only quote control tokens.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "chat/control_tokens.h"
#include "chat/template_program.h"
#include "model/tokenizer.h"

namespace kvant {

struct ChatText {
  std::string text;
  // These byte positions in `text` are where a message or a tool quotes a control token. A quoted control
  // token counts as text.
  std::vector<std::size_t> quoted;
};

// Returns whether the model must continue the last message. The model must continue an assistant's message
// that calls no tool.
bool continues(const nlohmann::ordered_json& messages);

// Renders a conversation through a template. `messages` and `tools` have the OpenAI API's format. `values` is
// an object of further template variables, such as enable_thinking. A message that the model continues stays
// open; otherwise the text ends with the start of the assistant's turn. Returns the errors of
// TemplateProgram::render(), and an error if the template fails when control tokens in messages are broken.
Result<ChatText> write_chat(const TemplateProgram& program, const ControlTokens& control,
                            const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                            const nlohmann::ordered_json& values);

// Returns the tokens of the text from byte `from` on. A quoted control token is encoded as ordinary text.
// Returns the errors of Tokenizer::encode().
Result<std::vector<std::int32_t>> encode_chat(const Tokenizer& tokenizer, const ControlTokens& control,
                                              const ChatText& chat, std::size_t from);

}  // namespace kvant
