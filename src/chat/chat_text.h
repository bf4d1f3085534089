// A conversation as a prompt's text, and which control tokens in that text are only quoted by its messages.
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
  // Where, in bytes from the start of `text`, a message or a tool quotes a control token. A quoted one is
  // text.
  std::vector<std::size_t> quoted;
};

// Whether the last message is the assistant's, for the model to continue. A message that calls tools is
// whole.
bool continues(const nlohmann::ordered_json& messages);

// What a template makes of a conversation.
// messages, tools: as the OpenAI API has them. values: an object; further variables for the template, such as
// enable_thinking. A message to be continued is left open; after any other the assistant's turn begins.
// Errors: see TemplateProgram::render.
Result<ChatText> write_chat(const TemplateProgram& program, const ControlTokens& control,
                            const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                            const nlohmann::ordered_json& values);

// The tokens of the text from this byte on. A quoted control token becomes the tokens of a text that is none.
// Errors: see Tokenizer::encode.
Result<std::vector<std::int32_t>> encode_chat(const Tokenizer& tokenizer, const ControlTokens& control,
                                              const ChatText& chat, std::size_t from);

}  // namespace kvant
