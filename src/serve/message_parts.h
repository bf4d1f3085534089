// Reads the elements that messages of all APIs have in common: text parts, thoughts, and parts that are not
// text. Every API's reader calls these functions, so all readers refuse the same parts with the same words.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/json_fields.h"

namespace kvant {

// MessageText holds the text of a message and the thought that belongs to the text.
struct MessageText {
  std::string text;
  std::string thought;
};

// Refuses an image, a file, a sound, or any other part that is not text. `where` is the part's name in
// errors, such as "messages[3].content[1]".
void refuse_part(JsonFields& part, const std::string& type, const std::string& where);

// Appends `more` to `thought`, on a new line.
void add_thought(const std::string& more, std::string& thought);

// Reads the member `key` of an OpenAI message: a text, or a list of texts, refusals and thoughts. Null and an
// empty list give an empty string. The error names the message and the part.
MessageText read_parts(JsonFields& message, const std::string& where, const char* key = "content");

}  // namespace kvant
