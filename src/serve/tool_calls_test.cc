// Tests tools, from a request to its completion, with the project's template for tools.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/json_reader.h"
#include "serve/api_request.h"
#include "serve/api_response.h"
#include "serve/chat_tools.h"
#include "serve/messages_api.h"
#include "serve/tiny_scheduler_fixture.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

const Json kParameters = Json::parse(R"({"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"]})");

Json tool(const std::string& name, const Json& parameters = kParameters) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"description", "about"}, {"parameters", parameters}}}};
}
Json function_choice(const std::string& name) {
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

class ToolCalls : public testing::TinyScheduler {
 protected:
  static void SetUpTestSuite() {
    TinyScheduler::SetUpTestSuite();
    template_ = new std::shared_ptr(ChatTemplate::open(engine_->tokenizer(), KVANT_TEST_TEMPLATE).value());
  }
  static void TearDownTestSuite() {
    delete template_;
    TinyScheduler::TearDownTestSuite();
  }

  static Json body(const Json& more) {
    Json json = {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                 {"tools", {tool("weather"), tool("news")}},
                 {"max_tokens", 900},
                 {"seed", 1}};
    json.update(more);
    return json;
  }
  static ParsedRequest parse(const Json& more, const ChatTemplate* chat_template) {
    return parse_chat_request(body(more), engine_->tokenizer(),
                              {.n_vocab = engine_->n_vocab(), .chat_template = chat_template});
  }
  static ApiRequest request(const Json& more) {
    ParsedRequest parsed = parse(more, template_->get());
    const auto* wrong = std::get_if<ApiError>(&parsed);
    KVANT_CHECK(wrong == nullptr, wrong->message.c_str());
    return std::get<ApiRequest>(std::move(parsed));
  }
  static std::string prompt(const Json& more) { return request(more).prompts.front().text; }
  static ApiResponse response(const ApiRequest& request) {
    return ApiResponse(engine_->tokenizer(), true, request.wants_probabilities, request.tool_format, "m",
                       "f");
  }

  static std::shared_ptr<const ChatTemplate>* template_;
};
std::shared_ptr<const ChatTemplate>* ToolCalls::template_ = nullptr;

// Checks the arguments by hand, independently of the grammar.
void expect_arguments(const std::string& text) {
  const auto json = parse_json(text);
  ASSERT_TRUE(json.ok()) << text;
  ASSERT_TRUE(json->contains("city") && json->at("city").is_string()) << text;
  ASSERT_TRUE(json->contains("days") && json->at("days").is_number_integer()) << text;
  EXPECT_TRUE(json->at("days") >= 1 && json->at("days") <= 9) << text;
  EXPECT_EQ(json->size(), 2U) << text;
}

TEST_F(ToolCalls, AreInThePromptAsTheTemplateSays) {
  const Json turns = {{{"role", "system"}, {"content", "Be brief."}},
                      {{"role", "user"}, {"content", "hi"}},
                      {{"role", "assistant"},
                       {"content", nullptr},
                       {"tool_calls",
                        {{{"id", "c1"},
                          {"type", "function"},
                          {"function", {{"name", "news"}, {"arguments", R"({"n": 2})"}}}}}}},
                      {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "nothing new"}}};
  const Json parameters = {{"type", "object"}, {"properties", {{"n", {{"type", "integer"}}}}}};
  EXPECT_EQ(
      prompt({{"messages", turns}, {"tools", {tool("news", parameters)}}}),
      "<|im_start|>system\nBe brief.\n\nThese functions can be called:\n"
      R"({"name": "news", "description": "about", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}})"
      "\nTo call one, answer with its name and arguments, and nothing after it:\n"
      "<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"NAME\": \"VALUE\"}}\n</tool_call><|im_end|>\n"
      "<|im_start|>user\nhi<|im_end|>\n"
      "<|im_start|>assistant\n<tool_call>\n{\"name\": \"news\", \"arguments\": {\"n\": "
      "2}}\n</tool_call><|im_end|>\n"
      "<|im_start|>user\n<tool_response>\nnothing new\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt({{"tools", nullptr}}), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

// The model has random weights, so a completion contains calls only because its grammar demands them.
TEST_F(ToolCalls, AreMadeAndHeldToTheirSchemaWhereTheyAreRequired) {
  std::set<std::string> called;
  for (int seed = 0; seed < 6; ++seed) {
    const Json choice = seed < 4 ? Json("required") : function_choice("news");
    const ApiRequest wanted =
        request({{"tool_choice", choice}, {"parallel_tool_calls", false}, {"seed", seed}});
    const auto reply = ask(wanted.prompts).front();
    ASSERT_EQ(reply.failure, "");
    ApiResponse collected = response(wanted), chunks = response(wanted);
    std::string arguments, name;
    Json last;
    for (const AnswerPart& part : reply.parts) {
      collected.add(0, part);
      const Json chunk = Json::parse(response_text(chunks.chunk(0, part)));
      if (chunk.is_null()) continue;
      last = chunk["choices"][0];
      for (const Json& call : last["delta"].value("tool_calls", Json::array())) {
        EXPECT_EQ(call["index"], 0);
        name += call["function"].value("name", "");
        arguments += call["function"]["arguments"].get<std::string>();
      }
    }
    const Json answer = Json::parse(response_text(collected.whole({})))["choices"][0];
    EXPECT_EQ(answer["finish_reason"], "tool_calls") << reply.text;
    EXPECT_EQ(last["finish_reason"], "tool_calls");
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1U) << reply.text;
    const Json& call = answer["message"]["tool_calls"][0];
    EXPECT_TRUE(answer["message"]["content"].is_null());
    EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
    EXPECT_EQ(call["function"]["name"], name);
    EXPECT_EQ(call["function"]["arguments"], arguments);
    expect_arguments(arguments);
    if (seed >= 4) {
      EXPECT_EQ(name, "news");
    }
    called.insert(name);
  }
  EXPECT_EQ(called, (std::set<std::string>{"news", "weather"}));
}

AnswerDelta read_text(const ToolFormat& format, const std::string& text, std::size_t step,
                      bool is_cut = false) {
  AnswerDelta all;
  const auto reader = format.read();
  const auto take = [&all](const AnswerDelta& more) {
    all.text += more.text;
    for (const ToolCallPart& part : more.calls) {
      if (part.index >= std::ssize(all.calls)) all.calls.push_back({.index = part.index, .id = part.id});
      all.calls[part.index].name += part.name;
      all.calls[part.index].arguments += part.arguments;
    }
  };
  for (std::size_t i = 0; i < text.size(); i += step) take(reader->add(text.substr(i, step)));
  take(reader->finish(is_cut));
  if (!is_cut) {
    EXPECT_EQ(reader->has_calls(), !all.calls.empty());
  }
  return all;
}

TEST_F(ToolCalls, ThatAreCutBeforeTheirNameLeaveNoText) {
  const std::string call = "<tool_call>\n{\"name\": \"news\"";
  for (const char* choice : {"auto", "required"}) {
    const ApiRequest wanted = request({{"tool_choice", choice}});
    for (std::size_t length = 11; length < call.size(); ++length) {
      const AnswerDelta read = read_text(*wanted.tool_format, call.substr(0, length), 3, /*is_cut=*/true);
      EXPECT_EQ(read.text, "") << choice << " " << call.substr(0, length);
      EXPECT_TRUE(read.calls.empty() || read.calls[0].name == "news");
    }
    ApiResponse whole = response(wanted);
    whole.add(0, {.text = call.substr(0, 20), .end = GenerationEnd::length});
    const Json answer = Json::parse(response_text(whole.whole({})))["choices"][0];
    EXPECT_TRUE(answer["message"]["content"].is_null()) << answer.dump();
    EXPECT_EQ(answer["finish_reason"], "length");
  }
  const auto format = request({{"tool_choice", "auto"}}).tool_format;
  EXPECT_EQ(read_text(*format, "a < b, and <tool", 3, /*is_cut=*/true).text, "a < b, and <tool");
  const std::string text = read_text(*format, "I look.\n" + call.substr(0, 20), 3, /*is_cut=*/true).text;
  EXPECT_TRUE(text.starts_with("I look.")) << text;
  EXPECT_EQ(text.find('<'), std::string::npos) << text;
}

TEST_F(ToolCalls, AreReadFromTheTextInAnyParts) {
  const auto format = request({{"parallel_tool_calls", true}}).tool_format;
  ASSERT_NE(format, nullptr);
  const std::string call =
      "<tool_call>\n{\"name\": \"news\", \"arguments\": {\"city\": \"Ghent\", \"days\": 3}}\n</tool_call>";
  const std::string other =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"x\", \"days\": 1}}\n</tool_call>";
  for (const std::size_t step : {1, 7, 1000}) {
    const AnswerDelta one = read_text(*format, "I look.\n" + call, step);
    EXPECT_TRUE(one.text.starts_with("I look.")) << one.text;
    EXPECT_EQ(one.text.find('<'), std::string::npos) << one.text;
    ASSERT_EQ(one.calls.size(), 1U);
    EXPECT_EQ(one.calls[0].name, "news");
    EXPECT_EQ(Json::parse(one.calls[0].arguments), (Json{{"city", "Ghent"}, {"days", 3}}));
    const AnswerDelta two = read_text(*format, call + "\n" + other, step);
    ASSERT_EQ(two.calls.size(), 2U);
    EXPECT_NE(two.calls[0].id, two.calls[1].id);
    EXPECT_EQ(two.calls[1].name, "weather");
    const AnswerDelta none = read_text(*format, "a < b, and <tool", step);
    EXPECT_EQ(none.text, "a < b, and <tool");
    EXPECT_TRUE(none.calls.empty());
  }
}

std::string brackets(int depth, char bracket) {
  return std::string(static_cast<std::size_t>(depth), bracket);
}

TEST_F(ToolCalls, AreTextFromWhereTheyAreNestedTooDeeply) {
  const auto format = request(Json::object()).tool_format;
  const std::string begin = "<tool_call>\n{\"name\": \"news\", \"arguments\": {\"city\": ",
                    end = "}}\n</tool_call>";
  const std::string deep = begin + brackets(100'000, '[') + end;
  for (const std::size_t step : {4096, 1'000'000}) {
    const AnswerDelta read = read_text(*format, deep, step);
    EXPECT_TRUE(read.text.ends_with(brackets(5000, '[') + end));
  }
  EXPECT_EQ(read_text(*format, "text " + brackets(100, '{'), 7).text, "text " + brackets(100, '{'));
  // Brackets within a string are not nesting. A quotation mark in the text before a call must not hide the
  // call's brackets.
  const AnswerDelta quoted = read_text(*format, begin + '"' + brackets(200, '[') + '"' + end, 50);
  ASSERT_EQ(quoted.calls.size(), 1U);
  EXPECT_EQ(Json::parse(quoted.calls[0].arguments), (Json{{"city", brackets(200, '[')}}));
  const AnswerDelta hidden = read_text(*format, "5\" of rain: " + deep, 1'000'000);
  EXPECT_TRUE(hidden.text.ends_with(end));
  const std::string below = begin + brackets(500, '[') + "1" + brackets(500, ']') + end;
  EXPECT_EQ(read_text(*format, "5\" of rain: " + below, 4096).calls.size(), 1U);
}

TEST_F(ToolCalls, AreAnswersThatAnthropicsApiHas) {
  const Json body = {
      {"max_tokens", 900},
      {"messages", {{{"role", "user"}, {"content", "hi"}}}},
      {"tools", {{{"name", "weather"}, {"input_schema", kParameters}}}},
      {"tool_choice", {{"type", "tool"}, {"name", "weather"}, {"disable_parallel_tool_use", true}}}};
  ParsedRequest parsed =
      parse_messages_request(body, engine_->tokenizer(), {.chat_template = template_->get()});
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(parsed)) << std::get<ApiError>(parsed).message;
  auto& wanted = std::get<ApiRequest>(parsed);
  // This seed gives a short completion, while other seeds need more than 900 tokens.
  wanted.prompts.front().sampling.seed = 1;
  const auto reply = ask(wanted.prompts).front();
  ASSERT_EQ(reply.failure, "") << reply.text;
  MessagesResponse whole("m", wanted.tool_format), events("m", wanted.tool_format);
  std::string stream = events.start_events({});
  for (const AnswerPart& part : reply.parts) {
    whole.add(part);
    stream += events.part_events(part);
  }
  stream += events.end_events({});
  const Json answer = whole.whole({});
  EXPECT_EQ(answer["stop_reason"], "tool_use") << reply.text;
  ASSERT_EQ(answer["content"].size(), 1U) << answer.dump();
  ASSERT_EQ(answer["content"][0].value("name", ""), "weather");
  expect_arguments(answer["content"][0]["input"].dump());
  EXPECT_NE(stream.find(R"("type":"input_json_delta")"), std::string::npos);
  EXPECT_NE(stream.find(R"("stop_reason":"tool_use")"), std::string::npos);
  // The client's next request contains the tool's result.
  Json next = body;
  next["messages"].push_back({{"role", "assistant"}, {"content", answer["content"]}});
  next["messages"].push_back(
      {{"role", "user"},
       {"content",
        {{{"type", "tool_result"}, {"tool_use_id", answer["content"][0]["id"]}, {"content", "sunny"}}}}});
  parsed = parse_messages_request(next, engine_->tokenizer(), {.chat_template = template_->get()});
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(parsed)) << std::get<ApiError>(parsed).message;
  const std::string& text = std::get<ApiRequest>(parsed).prompts[0].text;
  EXPECT_NE(text.find("<tool_response>\nsunny\n</tool_response>"), std::string::npos) << text;
  EXPECT_NE(text.find(R"(<tool_call>)"
                      "\n"
                      R"({"name": "weather")"),
            std::string::npos)
      << text;
}

Json with_definition(const std::string& name, const Json& definition) {
  const Json reference = {{"$ref", "#/$defs/" + name}};
  return {{"type", "object"}, {"properties", {{"a", reference}}}, {"$defs", {{name, definition}}}};
}

Json strict(Json tool) {
  tool["function"]["strict"] = true;
  return tool;
}

const Json kUnholdable = Json::parse(R"({"type": "object", "required": ["days", "tags"], "properties": {
    "days": {"type": "integer", "minimum": 1, "maximum": 9}, "ratio": {"type": "number", "minimum": 0},
    "tags": {"type": "array", "uniqueItems": true, "items": {"enum": ["x", "y"]}, "maxItems": 2},
    "code": {"type": "string", "pattern": "^(?!a)\\d+$"}, "text": {"type": "string", "maxLength": 100000}}})");

// Without `strict`, a schema is advice. Demands that a grammar cannot enforce are dropped and named, and all
// other demands hold.
TEST_F(ToolCalls, AreHeldToWhatCanBeHeldOfTheirSchema) {
  const Json asked = {{"tools", {tool("f", kUnholdable)}}};
  JsonFields fields(asked);
  const ChatTools read = read_tools(fields);
  ASSERT_FALSE(fields.error()) << fields.error()->message;
  ASSERT_EQ(read.loosened.size(), 4U);
  for (const char* part :
       {"parameters.properties.ratio' has 'minimum'", "parameters.properties.tags' has 'uniqueItems'",
        "parameters.properties.code' has the pattern", "parameters.properties.text' has 'maxLength'"}) {
    EXPECT_TRUE(std::ranges::any_of(read.loosened, [part](const std::string& sentence) {
      return sentence.find(part) != std::string::npos && sentence.find("'f'") != std::string::npos;
    })) << part;
  }
  // The prompt must show the schema unchanged.
  EXPECT_EQ(read.functions[0]["function"]["parameters"], kUnholdable);
  for (int seed = 0; seed < 3; ++seed) {
    const ApiRequest wanted = request({{"tools", {tool("f", kUnholdable)}},
                                       {"tool_choice", "required"},
                                       {"parallel_tool_calls", false},
                                       {"seed", seed}});
    const auto reply = ask(wanted.prompts).front();
    ASSERT_EQ(reply.failure, "");
    ApiResponse collected = response(wanted);
    for (const AnswerPart& part : reply.parts) collected.add(0, part);
    const Json answer = Json::parse(response_text(collected.whole({})))["choices"][0];
    if (answer["finish_reason"] == "length") continue;  // the random model wrote a text that is too long
    const auto arguments =
        parse_json(answer["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>());
    ASSERT_TRUE(arguments.ok()) << reply.text;
    EXPECT_TRUE(arguments->at("days") >= 1 && arguments->at("days") <= 9) << reply.text;
    EXPECT_LE(arguments->at("tags").size(), 2U) << reply.text;
  }
}

TEST_F(ToolCalls, AreRefusedByNameWhereAStrictSchemaCanNotBeHeld) {
  const ParsedRequest parsed =
      parse({{"tools", {tool("f"), strict(tool("g", kUnholdable))}}}, template_->get());
  const auto* error = std::get_if<ApiError>(&parsed);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->parameter, "tools[1].function.parameters");
  EXPECT_NE(error->message.find("the tool 'g'"), std::string::npos) << error->message;
  EXPECT_NE(error->message.find("minimum"), std::string::npos) << error->message;
  EXPECT_EQ(error->message.find("template"), std::string::npos) << error->message;
}

TEST_F(ToolCalls, MayBeManyWithDefinitionsOfTheSameName) {
  const ChatTemplate* tools = template_->get();
  const auto status = [&](const Json& list) {
    const ParsedRequest parsed = parse({{"tools", list}}, tools);
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? "" : error->message;
  };
  const Json text = {{"type", "string"}}, number = {{"type", "number"}};
  EXPECT_EQ(status({strict(tool("f", with_definition("x", text))),
                    strict(tool("g", with_definition("x", number)))}),
            "");
  Json many = Json::array();
  for (int i = 0; i < 150; ++i) {
    Json parameters = {{"type", "object"}, {"properties", Json::object()}};
    for (const char* name : {"path", "content", "limit", "recursive", "pattern"})
      parameters["properties"][name] = text;
    many.push_back(tool("tool_" + std::to_string(i), parameters));
  }
  EXPECT_EQ(status(many), "");
  Json large = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
  for (int i = 0; i < 3000; ++i) {
    large["properties"]["property_" + std::to_string(i)] = text;
    large["required"].push_back("property_" + std::to_string(i));
  }
  // The schemas cost too much, so both functions accept any arguments.
  EXPECT_EQ(status({tool("f", large), tool("g", large)}), "");
  EXPECT_NE(status({strict(tool("f", large)), strict(tool("g", large))}).find("too large"),
            std::string::npos);
  for (int i = 150; i < 4000; ++i) many.push_back(tool("tool_" + std::to_string(i), Json::object()));
  EXPECT_NE(status(many).find("one tool too many"), std::string::npos);
}

TEST_F(ToolCalls, LeaveValuesToTheTemplate) {
  const auto thinking = ChatTemplate::make(engine_->tokenizer(),
                                           "{% for m in messages %}{{ m.content }}{% endfor %}"
                                           "{% if enable_thinking is defined and not enable_thinking %}"
                                           "<none>{% endif %}{{ mood }}",
                                           "the template")
                            .value();
  const auto prompt = [&](const Json& more, const ChatTemplate* chat_template) {
    Json json = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    json.update(more);
    const ParsedRequest parsed = parse_chat_request(
        json, engine_->tokenizer(), {.n_vocab = engine_->n_vocab(), .chat_template = chat_template});
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? std::get<ApiRequest>(parsed).prompts.front().text : error->message;
  };
  const auto values = [](const Json& object) { return Json{{"chat_template_kwargs", object}}; };
  EXPECT_EQ(prompt(Json::object(), thinking.get()), "hi");
  EXPECT_EQ(prompt(values({{"enable_thinking", true}}), thinking.get()), "hi");
  EXPECT_EQ(prompt(values({{"enable_thinking", false}, {"mood", "calm"}}), thinking.get()), "hi<none>calm");
  EXPECT_NE(prompt(values({{"enable_thinking", "no"}}), thinking.get()).find("true or false"),
            std::string::npos);
  EXPECT_NE(prompt(values(5), thinking.get()).find("must be an object"), std::string::npos);
  const Json own = {{"messages", Json::array()},
                    {"tools", 5},
                    {"bos_token", "x"},
                    {"eos_token", "x"},
                    {"add_generation_prompt", false}};
  for (const auto& [name, value] : own.items())
    EXPECT_NE(prompt(values({{name, value}}), thinking.get())
                  .find(fmt::format("'chat_template_kwargs.{}' is not supported", name)),
              std::string::npos)
        << name;
  EXPECT_EQ(prompt(values({{"add_generation_prompt", true}}), thinking.get()), "hi");
  EXPECT_NE(prompt(values({{"mood", "calm"}}), nullptr).find("--chat-template"), std::string::npos);
}

TEST_F(ToolCalls, AreRefusedWhereTheyCanNotBe) {
  const auto refused = [](const Json& more, const ChatTemplate* chat_template) {
    const ParsedRequest parsed = parse(more, chat_template);
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? "accepted" : error->parameter;
  };
  const auto own = ChatTemplate::open(engine_->tokenizer(), "").value();
  EXPECT_FALSE(own->has_tools());
  EXPECT_TRUE((*template_)->has_tools());
  EXPECT_EQ(refused(Json::object(), own.get()), "tools");
  EXPECT_EQ(refused(Json::object(), nullptr), "tools");
  // With "none", the request has no tools.
  EXPECT_EQ(refused({{"tool_choice", "none"}}, own.get()), "accepted");
  const ChatTemplate* tools = template_->get();
  EXPECT_EQ(refused(Json::object(), tools), "accepted");
  EXPECT_EQ(refused({{"tools", {tool("f"), tool("f")}}}, tools), "tools[1].function.name");
  EXPECT_EQ(refused({{"tools", {tool("no name")}}}, tools), "tools[0].function.name");
  EXPECT_EQ(refused({{"tools", {tool("f", 5)}}}, tools), "tools[0].function.parameters");
  EXPECT_EQ(refused({{"tools", {{{"type", "web_search"}}}}}, tools), "tools[0].type");
  EXPECT_EQ(refused({{"tool_choice", function_choice("none")}}, tools), "tool_choice.function.name");
  EXPECT_EQ(refused({{"tool_choice", "sometimes"}}, tools), "tool_choice");
  EXPECT_EQ(refused({{"response_format", {{"type", "json_object"}}}}, tools), "response_format");
  EXPECT_EQ(refused({{"tool_choice", "none"}, {"response_format", {{"type", "json_object"}}}}, tools),
            "accepted");
}

}  // namespace
}  // namespace kvant
