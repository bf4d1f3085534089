// The messages of a chat as the OpenAI API has them, one by one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/chat_messages.h"
#include "serve/json_fields.h"

namespace kvant {

// Adds a message to the conversation. where: the message's name in errors, such as "messages[3]". A member
// that doesn't change what the message means (`name`, `cache_control`, an empty `refusal`) is left aside; one
// that does, such as `audio`, is an error of `fields`.
void read_chat_turn(const nlohmann::ordered_json& json, const std::string& where, JsonFields& fields,
                    ChatHistory& conversation);

}  // namespace kvant
