// Reads the options that say how much a model should think and where its thoughts go. Servers and families of
// models have different names for these options, and all names lead to one ThinkingOptions.
#pragma once

#include "chat/thinking_switch.h"
#include "serve/json_fields.h"

namespace kvant {

// Reads OpenAI's `reasoning_effort`, and parameters that other servers added: `reasoning` (OpenRouter),
// `thinking` (DeepSeek), `enable_thinking` (Qwen) and `reasoning_format` (llama-server). Mistakes become the
// error of `fields`.
ThinkingOptions read_chat_thinking(JsonFields& fields);
// Reads Anthropic's `thinking` and `output_config.effort`.
ThinkingOptions read_messages_thinking(JsonFields& fields);

}  // namespace kvant
