// The tools of a chat, as the OpenAI API has them.
#pragma once

#include "chat/chat_tools.h"
#include "serve/held_schema.h"
#include "serve/json_fields.h"

namespace kvant {

class ServerLog;

// Reads `tools`, `tool_choice` and `parallel_tool_calls`. What is wrong becomes the error of `fields`.
ChatTools read_tools(JsonFields& fields);

// Says in the log what the schemas ask for and arguments are not held to, each sentence once. log: may be
// null.
void log_loosened(const ChatTools& tools, ServerLog* log);

// Adds a function. where: its name in error messages; its own fields are name, description and, under
// schema_key, the schema of its arguments. schemas: what the schemas of all functions come to, so
// far. With `strict` arguments are held to the schema, or the schema is refused; without it the schema is
// advice.
void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools,
                  SchemaCost& schemas);
// Reads `tool_choice` as OpenAI's APIs have it: "auto", "none", "required", or an object that names a
// function, in its member `nested` or, where that is null, itself.
void read_tool_choice(JsonFields& fields, const char* nested, ChatTools& tools);
// A choice of one function by its name, which must be among them. `choice` has the name.
void choose_function(JsonFields& choice, ChatTools& tools);

}  // namespace kvant
