// The tools of a chat, as the OpenAI API has them.
#pragma once

#include "serve/chat_template.h"
#include "serve/json_fields.h"

namespace kvant {

inline constexpr std::size_t kMaxTools = 128;

// Reads `tools`, `tool_choice` and `parallel_tool_calls`. What is wrong becomes the error of `fields`.
ChatTools read_tools(JsonFields& fields);

// Adds a function. where: it is called in messages; its own fields are name, description and the schema of
// its arguments under that key.
void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools);
// A choice of one function by its name, which must be among them.
void choose_function(const std::string& name, const std::string& where, JsonFields& fields, ChatTools& tools);

}  // namespace kvant
