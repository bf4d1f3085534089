// Reads the conversation of a request to Anthropic's Messages API: the members `system` and `messages`. Each
// message becomes turns in the OpenAI API's form, because chat templates read that form.
#pragma once

#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {

// Returns the turns in the OpenAI API's form, which chat templates read. A tool's result becomes a turn of
// its own. A thought stays with its turn, and a `system` turn may stand anywhere. The function ignores
// members of blocks that do not change the meaning: `cache_control`, `citations`, `signature`. Blocks that
// are not text, such as images, become an error of `fields` that names the turn and the block.
ChatHistory read_conversation(JsonFields& fields);

}  // namespace kvant
