// Reads what messages of all APIs have in common: text parts, unreadable parts, and thoughts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/json_fields.h"

namespace kvant {

// Holds the content of a message.
struct MessageText {
  std::string text;
  std::string thought;  // what the model thought before it answered
};

// Refuses a part whose type changes the message's meaning: an image, a file, a sound. `where` is the part's
// name in errors, such as "messages[3].content[1]".
void refuse_part(JsonFields& part, const std::string& type, const std::string& where);

// Adds a thought to the earlier ones, on a new line.
void add_thought(const std::string& more, std::string& thought);

// Reads the member `key` of an OpenAI message: a text, or a list of texts, refusals and thoughts. Null and an
// empty list give an empty text. The error names the message and the part.
MessageText read_parts(JsonFields& message, const std::string& where, const char* key = "content");

}  // namespace kvant
