#include "serve/chat_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/schema_check.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxToolName = 64;

bool is_tool_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxToolName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

bool has_function(const ChatTools& tools, const std::string& name) {
  return std::ranges::any_of(tools.functions,
                             [&](const Json& tool) { return tool.at("function").at("name") == name; });
}

void read_tool(const Json& json, const std::string& where, JsonFields& fields, ChatTools& tools,
               SchemaSum& schemas) {
  JsonFields tool(json, where);
  tool.accept_only("type", {"function"}, "tools are functions");
  const Json* described = tool.value("function");
  if (described == nullptr) tool.fail("function", fmt::format("'{}.function' is missing", where));
  tool.leave_others();
  fields.take(tool);
  if (fields.error()) return;
  JsonFields function(*described, where + ".function");
  add_function(function, "parameters", where + ".function", tools, schemas);
  fields.take(function);
}

void read_choice(JsonFields& fields, ChatTools& tools) {
  const Json* json = fields.value("tool_choice");
  if (json == nullptr || *json == "auto") return;
  if (*json == "none" || *json == "required") {
    tools.choice = *json == "none" ? ChatTools::Choice::none : ChatTools::Choice::required;
  } else if (json->is_object()) {
    JsonFields choice(*json, "tool_choice");
    choice.accept_only("type", {"function"}, "tools are functions");
    const Json* function = choice.value("function");
    choice.leave_others();
    fields.take(choice);
    if (function == nullptr) fields.fail("tool_choice", "'tool_choice.function' is missing");
    if (fields.error()) return;
    JsonFields named(*function, "tool_choice.function");
    const std::string name = named.text("name").value_or("");
    named.leave_others();
    fields.take(named);
    choose_function(name, "tool_choice", fields, tools);
  } else {
    fields.fail("tool_choice", "'tool_choice' must be auto, none, required, or name a function");
  }
  if (tools.functions.empty() && tools.choice == ChatTools::Choice::required)
    fields.fail("tool_choice", "'tool_choice' wants a tool, and there are no 'tools'");
}

}  // namespace

void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools,
                  SchemaSum& schemas) {
  Json description = Json::object();
  const std::string name = function.text("name").value_or("");
  if (!is_tool_name(name)) {
    function.fail(
        "name", fmt::format("'{}.name' must have 1 to {} letters, digits, '_' and '-'", where, kMaxToolName));
  } else if (has_function(tools, name)) {
    function.fail("name", fmt::format("'{}.name': there are two tools named '{}'", where, name));
  }
  description["name"] = name;
  if (const auto text = function.text("description")) description["description"] = *text;
  const Json* schema = function.value(schema_key);
  description["parameters"] = schema == nullptr || schema->empty()
                                  ? Json{{"type", "object"}, {"properties", Json::object()}}
                                  : *schema;
  function.boolean("strict");  // arguments are always held to their schema
  if (schema != nullptr) {
    if (const Status status = check_schema(*schema, where + "." + schema_key, schemas); !status.ok())
      function.fail(schema_key, status.error().message);
  }
  function.leave_others();
  tools.functions.push_back({{"type", "function"}, {"function", std::move(description)}});
}

void choose_function(const std::string& name, const std::string& where, JsonFields& fields,
                     ChatTools& tools) {
  tools.choice = ChatTools::Choice::required;
  tools.only = name;
  if (!has_function(tools, name))
    fields.fail(where, fmt::format("'{}' names '{}', which is not among the tools", where, name));
}

ChatTools read_tools(JsonFields& fields) {
  ChatTools tools;
  SchemaSum schemas;
  if (const Json* list = fields.value("tools")) {
    if (!list->is_array() || list->size() > kMaxTools)
      fields.fail("tools", fmt::format("'tools' must be a list of at most {} tools", kMaxTools));
    for (std::size_t i = 0; list->is_array() && i < list->size() && !fields.error(); ++i)
      read_tool((*list)[i], fmt::format("tools[{}]", i), fields, tools, schemas);
  }
  if (fields.error()) return tools;
  read_choice(fields, tools);
  tools.parallel = fields.boolean("parallel_tool_calls");
  return tools;
}

}  // namespace kvant
