// The messages of a chat, as the OpenAI API has them.
#pragma once

#include <optional>
#include <vector>

#include "model/tokenizer.h"
#include "serve/json_fields.h"
#include "serve/request.h"

namespace kvant {

// Reads `messages`. What is wrong or not supported (anything but text) becomes the error of `fields`.
std::vector<ChatMessage> read_messages(JsonFields& fields);

// The request's prompt: the model's chat template of the messages, as text and as tokens. Or why there is
// none.
std::optional<ApiError> set_chat_prompt(const std::vector<ChatMessage>& messages, const Tokenizer& tokenizer,
                                        GenerationRequest& request);

}  // namespace kvant
