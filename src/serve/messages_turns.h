// Reads the conversation of a request to Anthropic's Messages API, from the members `system` and `messages`.
// Each message becomes turns in the OpenAI API's form, because chat templates read that form.
#pragma once

#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {

// Returns the turns in the OpenAI API's form, which chat templates read. A tool's result becomes a separate
// turn. A thought stays with its turn, and a `system` turn may stand anywhere. The function ignores the
// members `cache_control`, `citations` and `signature` of blocks, which do not change the meaning. Blocks
// that are not text, such as images, become an error of `fields` that names the turn and the block.
ChatHistory read_conversation(JsonFields& fields);

}  // namespace kvant
