// The messages of a chat, as the OpenAI API has them.
#pragma once

#include <vector>

#include "model/tokenizer.h"
#include "serve/json_fields.h"

namespace kvant {

// Reads `messages`. What is wrong or not supported (anything but text) becomes the error of `fields`.
std::vector<ChatMessage> read_messages(JsonFields& fields);

}  // namespace kvant
