// The conversation of a request of Anthropic's Messages API: `system` and `messages`.
#pragma once

#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {

// The turns as the OpenAI API has them, which chat templates read: what a tool gave is a turn of its own, a
// thought goes with its turn, and a `system` turn may stand anywhere. Members of blocks that don't change
// what is said
// (`cache_control`, `citations`, `signature`) are left aside. Blocks that do, such as images, are an error of
// `fields`, which names the turn and the block.
ChatHistory read_conversation(JsonFields& fields);

}  // namespace kvant
