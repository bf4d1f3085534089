// Reads the messages of a chat in the OpenAI API's format, one by one. Templates read messages whose content
// is a text, so other forms of content are converted, and media are refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {

// Adds a message to the conversation. `where` is the message's name in errors, such as "messages[3]". The
// function ignores members that do not change the meaning: `name`, `cache_control`, an empty `refusal`. A
// member that changes the meaning, such as `audio`, becomes an error of `fields`.
void read_chat_turn(const nlohmann::ordered_json& json, const std::string& where, JsonFields& fields,
                    ChatHistory& conversation);

}  // namespace kvant
