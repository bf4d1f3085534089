#include "serve/chat_tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "serve/server_log.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxToolName = 64;
// The names and schemas of all tools together may take this many grammar symbols.
constexpr std::int64_t kMaxToolSymbols = 60'000;

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
               SchemaCost& schemas) {
  JsonFields tool(json, where);
  tool.accept_only("type", {"function"}, "tools are functions");
  const Json* described = tool.value("function");
  if (described == nullptr) tool.fail_missing("function", "an object with its name and parameters");
  tool.leave_others();
  fields.take(tool);
  if (fields.error()) return;
  JsonFields function(*described, where + ".function");
  add_function(function, "parameters", where + ".function", tools, schemas);
  fields.take(function);
}

}  // namespace

void add_function(JsonFields& function, const char* schema_key, const std::string& where, ChatTools& tools,
                  SchemaCost& schemas) {
  Json description = Json::object();
  const std::string name = function.text("name").value_or("");
  if (name.empty()) {
    function.fail_missing("name", "the name of the function");
  } else if (!is_tool_name(name)) {
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
  const bool is_strict = function.boolean("strict").value_or(false);
  auto held = hold_schema(description["parameters"], where + "." + schema_key,
                          is_strict ? SchemaUse::exact : SchemaUse::advice,
                          fmt::format("tool-{}-part-", tools.functions.size()), schemas);
  schemas.symbols += 64 + std::ssize(name);  // the rules around the name take about 64 symbols
  Json held_description = {{"name", name}};
  if (held.ok()) {
    held_description["parameters"] = std::move(held->schema);
    for (std::string& sentence : held->loosened)
      tools.loosened.push_back(fmt::format(
          "the arguments of the tool '{}' are not restricted to its whole schema: {}", name, sentence));
  } else {
    function.fail(schema_key, fmt::format("the tool '{}': {}", name, held.error().message));
  }
  if (schemas.symbols > kMaxToolSymbols)
    function.fail(
        schema_key,
        fmt::format("'{}' is one tool too many: the names and schemas of the tools have more than {} symbols",
                    where, kMaxToolSymbols));
  function.leave_others();
  tools.held.push_back({{"type", "function"}, {"function", std::move(held_description)}});
  tools.functions.push_back({{"type", "function"}, {"function", std::move(description)}});
}

void choose_function(JsonFields& choice, ChatTools& tools) {
  tools.choice = ChatTools::Choice::required;
  tools.only = choice.text("name").value_or("");
  if (tools.only.empty()) {
    choice.fail_missing("name", "the function to call");
  } else if (!has_function(tools, tools.only)) {
    choice.fail("name", fmt::format("'tool_choice' names '{}', which is not among the tools", tools.only));
  }
}

void read_tool_choice(JsonFields& fields, const char* nested, ChatTools& tools) {
  const Json* json = fields.value("tool_choice");
  if (json == nullptr || *json == "auto") return;
  if (*json == "none" || *json == "required") {
    tools.choice = *json == "none" ? ChatTools::Choice::none : ChatTools::Choice::required;
  } else if (json->is_object()) {
    JsonFields choice(*json, "tool_choice");
    choice.accept_only("type", {"function"}, "only a function can be chosen");
    const Json* function = nested == nullptr ? nullptr : choice.value(nested);
    if (nested == nullptr) {
      choose_function(choice, tools);
    } else if (function == nullptr) {
      choice.fail_missing(nested, "an object with the 'name' of the function to call");
    } else {
      JsonFields named(*function, fmt::format("tool_choice.{}", nested));
      choose_function(named, tools);
      named.leave_others();
      choice.take(named);
    }
    choice.leave_others();
    fields.take(choice);
  } else {
    fields.fail("tool_choice", "'tool_choice' must be auto, none, required, or name a function",
                json->is_string() ? kInvalidValue : kInvalidType);
  }
  if (tools.functions.empty() && tools.choice == ChatTools::Choice::required)
    fields.fail("tool_choice", "'tool_choice' asks for a function, but 'tools' has none");
}

void log_loosened(const ChatTools& tools, ServerLog* log) {
  if (log == nullptr) return;
  for (const std::string& sentence : tools.loosened) log->message_once(sentence);
}

ChatTools read_tools(JsonFields& fields) {
  ChatTools tools;
  SchemaCost schemas;
  const Json* list = fields.list("tools", "tools");
  for (std::size_t i = 0; list != nullptr && i < list->size() && !fields.error(); ++i)
    read_tool((*list)[i], fmt::format("tools[{}]", i), fields, tools, schemas);
  if (fields.error()) return tools;
  read_tool_choice(fields, "function", tools);
  tools.parallel = fields.boolean("parallel_tool_calls");
  return tools;
}

}  // namespace kvant
