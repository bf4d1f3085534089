// The tools of a chat, as the OpenAI API has them.
#pragma once

#include "chat/chat_tools.h"
#include "serve/json_fields.h"
#include "serve/schema_check.h"

namespace kvant {

inline constexpr std::size_t kMaxTools = 128;

// Reads `tools`, `tool_choice` and `parallel_tool_calls`. What is wrong becomes the error of `fields`.
ChatTools read_tools(JsonFields& fields);

// Adds a function. where: its name in error messages; its own fields are name, description and, under
// schema_key, the schema of its arguments. schemas: the sum of all functions' schemas so far.
void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools,
                  SchemaSum& schemas);
// A choice of one function by its name, which must be among them.
void choose_function(const std::string& name, const std::string& where, JsonFields& fields, ChatTools& tools);

}  // namespace kvant
