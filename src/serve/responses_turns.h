// The conversation of a request to the Responses API: `instructions`, and `input`, a text or a list of items.
#pragma once

#include "chat/chat_history.h"
#include "serve/json_fields.h"

namespace kvant {

// Items of reasoning, text and calls that follow each other become turns of the assistant. What is wrong or
// can't be read becomes the error of `fields`.
ChatHistory read_input(JsonFields& fields);

}  // namespace kvant
