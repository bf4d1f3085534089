// The messages of a chat, as the OpenAI API has them, and the prompt that they become.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "chat/chat_history.h"
#include "chat/chat_template.h"
#include "serve/api_request.h"
#include "serve/json_fields.h"

namespace kvant {

// Reads `messages` and `chat_template_kwargs`. What is wrong or not supported (anything but text and tools)
// becomes the error of `fields`.
ChatHistory read_messages(JsonFields& fields);

// The request's prompt: the chat template of the messages and tools, as text and as tokens, and with tools
// what the completion may be. Or why there is none. chat_template: null: the model has none.
std::optional<ApiError> set_chat_prompt(const ChatHistory& conversation, const ChatTools& tools,
                                        const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                                        ApiRequest& api_request, GenerationRequest& request);

// The prompt's text alone.
Result<std::string> chat_text(const ChatHistory& conversation, const ChatTools& tools,
                              const ChatTemplate* chat_template);

}  // namespace kvant
