// A conversation as a prompt's text, and which control tokens in that text its messages only quote.
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
  // Byte positions in `text` at which a message or a tool quotes a control token. A quoted control token
  // counts as text.
  std::vector<std::size_t> quoted;
};

// Returns whether the last message is the assistant's and the model is to continue it. A message that calls
// tools is complete.
bool continues(const nlohmann::ordered_json& messages);

// Renders a conversation with a template. messages, tools: as the OpenAI API has them. values: an object of
// further variables for the template, such as enable_thinking. A message to be continued is left open; after
// any other the assistant's turn begins. Errors: see TemplateProgram::render.
Result<ChatText> write_chat(const TemplateProgram& program, const ControlTokens& control,
                            const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                            const nlohmann::ordered_json& values);

// Returns the tokens of the text from this byte on. A quoted control token is encoded as ordinary text.
// Errors: see Tokenizer::encode.
Result<std::vector<std::int32_t>> encode_chat(const Tokenizer& tokenizer, const ControlTokens& control,
                                              const ChatText& chat, std::size_t from);

}  // namespace kvant
