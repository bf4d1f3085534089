// Reads the conversation of a request to the Responses API: `instructions`, and `input`, which is a text or a
// list of items. The items become turns in the OpenAI API's form, because chat templates read that form.
#pragma once

#include "chat/chat_history.h"
#include "serve/json_fields.h"

namespace kvant {

// Returns the conversation. Adjacent items of reasoning, text and calls become one turn of the assistant.
// Mistakes and unreadable items become the error of `fields`.
ChatHistory read_input(JsonFields& fields);

}  // namespace kvant
