// Reads the tools of a chat in the OpenAI API's format. Their schemas become grammars, so tool calls have
// valid arguments.
#pragma once

#include "chat/chat_tools.h"
#include "serve/held_schema.h"
#include "serve/json_fields.h"

namespace kvant {

class ServerLog;

// Reads `tools`, `tool_choice` and `parallel_tool_calls`. A mistake becomes the error of `fields`.
ChatTools read_tools(JsonFields& fields);

// Logs each part of a tool's schema that the grammar does not enforce. The log contains the same sentence
// only once. `log` may be null.
void log_loosened(const ChatTools& tools, ServerLog* log);

// Adds a function to `tools`. `where` is the function's name in error messages. `function` has a name, a
// description and, under schema_key, a schema of the arguments. `schemas` sums up the cost of all functions'
// schemas. If the function is `strict`, the arguments must match the schema, or the schema is refused.
// Otherwise, the parts of the schema that no grammar can enforce are dropped.
void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools,
                  SchemaCost& schemas);
// Reads `tool_choice` of an OpenAI API: "auto", "none", "required", or an object that names a function. The
// function's name is in the object's member `nested`, or in the object itself if `nested` is null.
void read_tool_choice(JsonFields& fields, const char* nested, ChatTools& tools);
// Makes the model call the function that `choice` names. The function must be one of `tools`.
void choose_function(JsonFields& choice, ChatTools& tools);

}  // namespace kvant
