// Reads the tools of a chat in the OpenAI API's format.
#pragma once

#include "chat/chat_tools.h"
#include "serve/held_schema.h"
#include "serve/json_fields.h"

namespace kvant {

class ServerLog;

// Reads `tools`, `tool_choice` and `parallel_tool_calls`. A mistake becomes the error of `fields`.
ChatTools read_tools(JsonFields& fields);

// Logs, once per sentence, which demands of the schemas the arguments are not held to. `log` may be null.
void log_loosened(const ChatTools& tools, ServerLog* log);

// Adds a function. `where` is its name in error messages. Its fields are name, description and, under
// schema_key, the schema of its arguments. `schemas` counts the cost of all functions' schemas so far. With
// `strict`, arguments are held to the schema, or the schema is refused; without it the schema is advice.
void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools,
                  SchemaCost& schemas);
// Reads `tool_choice` as OpenAI's APIs have it: "auto", "none", "required", or an object that names a
// function. The name is in the object's member `nested`, or in the object itself if `nested` is null.
void read_tool_choice(JsonFields& fields, const char* nested, ChatTools& tools);
// Chooses one function by the name in `choice`, which must be among the tools.
void choose_function(JsonFields& choice, ChatTools& tools);

}  // namespace kvant
