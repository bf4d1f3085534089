#include "eval/tasks/bfcl.h"

#include <algorithm>
#include <map>

#include "base/json_reader.h"
#include "eval/tasks/call_match.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

std::string schema_type(const std::string& name) {
  static const std::map<std::string, std::string> kTypes = {
      {"integer", "integer"}, {"number", "number"}, {"float", "number"}, {"boolean", "boolean"},
      {"array", "array"},     {"tuple", "array"},   {"dict", "object"},  {"object", "object"}};
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? "string" : found->second;
}

// Converts the schema of a value and the schemas inside.
void convert_schema(Json& schema, bool is_property) {
  if (!schema.is_object()) return;
  const std::string type = text_member(schema, "type").value_or("string");
  if (is_property && type == "float") {
    schema["format"] = "float";
    schema["description"] = text_member(schema, "description").value_or("") + " This is a float type value.";
  }
  schema["type"] = schema_type(type);
  if (schema.contains("properties") && schema["properties"].is_object()) {
    for (Json& property : schema["properties"]) convert_schema(property, /*is_property=*/true);
  } else if (schema.contains("items")) {
    convert_schema(schema["items"], /*is_property=*/false);
  }
}

// Holds the complete calls of a completion, and whether all calls have the name of a tool and an object as
// arguments.
struct ReadCalls {
  std::vector<MadeCall> calls;
  bool are_valid = true;
};

ReadCalls read_calls(const ToolFormat& format, const Json& tools, const std::string& completion) {
  const auto reader = format.read();
  std::map<int, std::pair<std::string, std::string>> parts;  // the name and arguments of each call
  const auto take = [&](const AnswerDelta& delta) {
    for (const ToolCallPart& part : delta.calls) {
      parts[part.index].first += part.name;
      parts[part.index].second += part.arguments;
    }
  };
  take(reader->add(completion));
  take(reader->finish(/*was_cut=*/false));
  ReadCalls read;
  for (const auto& [index, part] : parts) {
    const std::string &name = part.first, &text = part.second;
    auto arguments = parse_json(text.empty() ? "{}" : text);
    const bool is_offered =
        std::ranges::any_of(tools, [&](const Json& tool) { return tool["function"]["name"] == name; });
    read.are_valid = read.are_valid && is_offered && arguments.ok() && arguments->is_object();
    read.calls.push_back({name, arguments.ok() ? std::move(arguments).value() : Json()});
  }
  read.are_valid = read.are_valid && !read.calls.empty();
  return read;
}

Result<TaskProblem> bfcl_problem(const ChatTemplate& chat_template, const Json& question, const Json& answer,
                                 const BfclOptions& options) {
  const std::string id = *text_member(question, "id");
  ChatHistory history;
  if (options.depth > 0) {
    history.add("user", "Here is a text that I will ask about later.\n\n" + options.before);
    history.add("assistant", "I have read the text.");
  }
  for (const Json& message : question["question"][0]) history.json.push_back(message);
  ChatTools tools{.functions = bfcl_tools(question["function"])};
  auto chat = chat_template.apply(history.json, tools, Json::object());
  if (!chat.ok()) return chat.error();
  if (chat->format == nullptr) return error("the model's chat template has no form for tool calls");
  BatchPrompt prompt{std::move(chat->tokens),
                     {.max_tokens = options.max_tokens,
                      .stops = chat->stops,
                      .hides_control_tokens = true,
                      .kept_tokens = chat->kept_tokens}};
  return TaskProblem{id, std::move(prompt),
                     [format = chat->format, functions = question["function"], tools = tools.functions,
                      answers = answer["ground_truth"]](const std::string& completion) {
                       const ReadCalls read = read_calls(*format, tools, completion);
                       return TaskScore{calls_match(read.calls, functions, answers), read.are_valid};
                     }};
}

bool is_array_of(const Json& object, const char* key, bool (*fits)(const Json&)) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() && !found->empty() && std::ranges::all_of(*found, fits);
}

bool is_question(const Json& record) {
  return text_member(record, "id") &&
         is_array_of(record, "question",
                     [](const Json& turn) {
                       return turn.is_array() && std::ranges::all_of(turn, [](const Json& message) {
                                return text_member(message, "role") && text_member(message, "content");
                              });
                     }) &&
         is_array_of(record, "function", [](const Json& f) {
           return text_member(f, "name") && f.contains("parameters") && f["parameters"].is_object();
         });
}

bool is_answer(const Json& record) {
  return text_member(record, "id") && is_array_of(record, "ground_truth", [](const Json& call) {
           return call.is_object() && call.size() == 1 && call.front().is_object();
         });
}

}  // namespace

Json bfcl_tools(const Json& functions) {
  Json tools = Json::array();
  for (Json function : functions) {
    function["name"] = tool_name(function["name"].get<std::string>());
    function["parameters"]["type"] = "object";
    convert_schema(function["parameters"], /*is_property=*/false);
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

Result<std::string> text_of_tokens(const Tokenizer& tokenizer, const std::string& text, int n_tokens) {
  auto tokens = tokenizer.encode(text, /*add_special=*/false, /*parse_special=*/false);
  if (!tokens.ok()) return tokens.error();
  if (tokens->empty()) return error("the text before the problems is empty: give a longer text with -f");
  std::string cut;
  for (int i = 0; i < n_tokens; ++i) cut += tokenizer.piece((*tokens)[i % tokens->size()]);
  // The last character may be incomplete, and the last word may be cut.
  return cut.substr(0, cut.find_last_of(" \n"));
}

Result<Task> make_bfcl(const ChatTemplate& chat_template, const std::string& questions,
                       const std::string& answers, const BfclOptions& options) {
  if (!chat_template.has_tools())
    return error("tool calls need a model whose chat template has tools: leave out the tasks bfcl-*");
  Task task{.name = "bfcl-" + options.category, .depth = options.depth, .has_form = true};
  const auto asked = parse_json_lines(questions, task.name, options.most);
  if (!asked.ok()) return asked.error();
  const auto known = parse_json_lines(answers, "the answers of " + task.name, /*most=*/0);
  if (!known.ok()) return known.error();
  std::map<std::string, const Json*> by_id;
  for (const Json& answer : *known) {
    if (is_answer(answer)) by_id[*text_member(answer, "id")] = &answer;
  }
  for (const Json& question : *asked) {
    if (!is_question(question))
      return error("problem {} of {} lacks an \"id\", a \"question\" or a \"function\"", task.problems.size(),
                   task.name);
    const auto answer = by_id.find(*text_member(question, "id"));
    if (answer == by_id.end())
      return error("the answers of {} lack the problem '{}'", task.name, *text_member(question, "id"));
    auto problem = bfcl_problem(chat_template, question, *answer->second, options);
    if (!problem.ok()) return error("{}: {}", *text_member(question, "id"), problem.error().message);
    task.problems.push_back(std::move(problem).value());
  }
  return task;
}

}  // namespace kvant
