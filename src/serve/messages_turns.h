// Reads the conversation of a request to Anthropic's Messages API: `system` and `messages`.
#pragma once

#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {

// Returns the turns in the OpenAI API's form, which chat templates read. A tool's result is a turn of its
// own, a thought goes with its turn, and a `system` turn may stand anywhere. Members of blocks that do not
// change the meaning (`cache_control`, `citations`, `signature`) are ignored. Blocks that do, such as images,
// become an error of `fields`, which names the turn and the block.
ChatHistory read_conversation(JsonFields& fields);

}  // namespace kvant
