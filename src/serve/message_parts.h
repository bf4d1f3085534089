// What the messages of both APIs have in common: parts that are text, parts that can't be read, and thoughts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/json_fields.h"

namespace kvant {

// What a message says.
struct MessageText {
  std::string text;
  std::string thought;  // of a model that thinks before it speaks
};

// Refuses a part whose type changes what the message means: an image, a file, a sound. where: the part's name
// in errors, such as "messages[3].content[1]".
void refuse_part(JsonFields& part, const std::string& type, const std::string& where);

// Adds a thought to those before it, a line below them.
void add_thought(const std::string& more, std::string& thought);

// The member `key` of a message of the OpenAI API: a text, or a list of parts, which are texts, refusals and
// thoughts. Null and an empty list are an empty text. The error names the message and the part.
MessageText read_parts(JsonFields& message, const std::string& where, const char* key = "content");

}  // namespace kvant
