// Tests thoughts, from a request to its completion, with and without tools.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "base/json_reader.h"
#include "serve/api_request.h"
#include "serve/api_response.h"
#include "serve/messages_api.h"
#include "serve/tiny_scheduler_fixture.h"

namespace kvant::thoughts_test {
namespace {

using Json = nlohmann::ordered_json;

std::string replaced(std::string text, const std::string& old, const std::string& more) {
  KVANT_CHECK(text.find(old) != std::string::npos, old.c_str());
  return text.replace(text.find(old), old.size(), more);
}

// Returns the project's template for tools, extended by thoughts in Qwen 3's format.
std::string template_source(bool opens_thought) {
  std::ifstream file(KVANT_TEST_TEMPLATE);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string history = "{%- if message.content -%}{{- message.content -}}";
  const std::string thought =
      "{%- if message.reasoning_content -%}{{- '<think>\\n' + message.reasoning_content + "
      "'\\n</think>\\n\\n' -}}"
      "{%- endif -%}";
  std::string source = replaced(text.str(), history, thought + history);
  const std::string start = "{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";
  return replaced(source, start,
                  opens_thought
                      ? "{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}"
                      : "{{- '<|im_start|>assistant\\n' -}}{%- if enable_thinking is defined and not "
                        "enable_thinking -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}");
}

const Json kWeather = Json::parse(R"({"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 6}}, "required": ["city"]}})");
constexpr const char* kTaggedCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ghent\"}}\n</tool_call>";
constexpr const char* kFencedCall =
    "```json\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ghent\"}}\n```";

class Thoughts : public testing::TinyScheduler {
 protected:
  static void SetUpTestSuite() {
    TinyScheduler::SetUpTestSuite();
    for (const bool opens : {false, true})
      templates_[opens ? 1 : 0] =
          ChatTemplate::make(engine_->tokenizer(), template_source(opens), "the template").value();
  }
  static void TearDownTestSuite() {
    for (auto& chat_template : templates_) chat_template.reset();
    TinyScheduler::TearDownTestSuite();
  }

  static ApiRequest request(const Json& more, bool opens_thought) {
    Json json = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    json.update(more);
    ParsedRequest parsed = parse_chat_request(
        json, engine_->tokenizer(),
        {.n_vocab = engine_->n_vocab(), .chat_template = templates_[opens_thought ? 1 : 0].get()});
    const auto* wrong = std::get_if<ApiError>(&parsed);
    KVANT_CHECK(wrong == nullptr, wrong->message.c_str());
    return std::get<ApiRequest>(std::move(parsed));
  }
  static std::string prompt(const Json& more, bool opens_thought) {
    return request(more, opens_thought).prompts.front().text;
  }
  static Json tools() { return {{"tools", {{{"type", "function"}, {"function", kWeather}}}}}; }

  // Returns the message of a completion with the given text. Expects that a stream of the text gives the same
  // message as a response in one piece.
  static Json message(const Json& more, bool opens_thought, const std::string& text) {
    const ApiRequest wanted = request(more, opens_thought);
    const auto response = [&] {
      return ApiResponse(engine_->tokenizer(), true, false, wanted.tool_format, "m", "f");
    };
    ApiResponse collected = response(), chunks = response();
    std::string content, thought;
    for (std::size_t i = 0; i < text.size(); i += 3) {
      const AnswerPart part{.text = text.substr(i, 3),
                            .end = i + 3 < text.size() ? GenerationEnd::none : GenerationEnd::finished};
      collected.add(0, part);
      const Json chunk = chunks.chunk(0, part);
      if (chunk.is_null()) continue;
      const Json& delta = chunk["choices"][0]["delta"];
      EXPECT_TRUE(content.empty() || !delta.contains("reasoning_content"));
      content += delta.value("content", "");
      thought += delta.value("reasoning_content", "");
    }
    Json whole = collected.whole({})["choices"][0]["message"];
    EXPECT_EQ(thought, whole.value("reasoning_content", ""));
    EXPECT_EQ(content, whole["content"].is_null() ? "" : whole["content"].get<std::string>());
    return whole;
  }

  static inline std::shared_ptr<const ChatTemplate> templates_[2];
};

TEST_F(Thoughts, AreApartFromTheContent) {
  for (const bool opens : {false, true}) {
    const std::string start = opens ? "" : "<think>\n";
    const Json said = message(Json::object(), opens, start + "So, a < b.\n</think>\n\nYes <b>.");
    EXPECT_EQ(said["reasoning_content"], "So, a < b.");
    EXPECT_EQ(said["content"], "Yes <b>.");
    const Json cut = message(Json::object(), opens, start + "So, a");
    EXPECT_EQ(cut["reasoning_content"], "So, a");
    EXPECT_EQ(cut["content"], "");
  }
  const Json plain = message(Json::object(), false, "Yes, a <think>b</think>.\n");
  EXPECT_FALSE(plain.contains("reasoning_content"));
  EXPECT_EQ(plain["content"], "Yes, a <think>b</think>.\n");
}

TEST_F(Thoughts, StayInTheTextWhereTheRequestWantsIt) {
  const Json said = message({{"reasoning_format", "none"}}, false, "<think>\na\n</think>\n\nb");
  EXPECT_FALSE(said.contains("reasoning_content"));
  EXPECT_EQ(said["content"], "<think>\na\n</think>\n\nb");
}

TEST_F(Thoughts, GoBeforeCalls) {
  for (const char* call : {kTaggedCall, kFencedCall}) {
    const Json said =
        message(tools(), false, std::string("<think>\na ") + kFencedCall + "\n</think>\n\n" + call);
    EXPECT_EQ(said["reasoning_content"], std::string("a ") + kFencedCall);
    EXPECT_TRUE(said["content"].is_null()) << said.dump();
    ASSERT_EQ(said["tool_calls"].size(), 1U) << said.dump();
    EXPECT_EQ(Json::parse(said["tool_calls"][0]["function"]["arguments"].get<std::string>()),
              (Json{{"city", "Ghent"}}));
  }
}

TEST_F(Thoughts, AreGivenBackToTheTemplate) {
  const Json turns = {{{"role", "user"}, {"content", "hi"}},
                      {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "a"}},
                      {{"role", "user"}, {"content", "go on"}}};
  EXPECT_NE(prompt({{"messages", turns}}, false).find("assistant\n<think>\na\n</think>\n\nb<|im_end|>"),
            std::string::npos);
}

TEST_F(Thoughts, AreSwitchedByWhatEachApiHasForIt) {
  const auto is_off = [](const Json& more) {
    return prompt(more, false).ends_with("assistant\n<think>\n\n</think>\n\n");
  };
  EXPECT_FALSE(is_off(Json::object()));
  EXPECT_FALSE(is_off({{"reasoning_effort", "high"}}));
  EXPECT_TRUE(is_off({{"reasoning_effort", "none"}}));
  EXPECT_TRUE(is_off({{"chat_template_kwargs", {{"enable_thinking", false}}}}));
  EXPECT_TRUE(is_off({{"thinking", {{"type", "disabled"}}}}));
  EXPECT_EQ(message({{"reasoning_effort", "none"}}, false, "b")["content"], "b");
}

// A format restricts a completion from its first token on, so the prompt must disable thoughts.
TEST_F(Thoughts, AreLeftOutOfAFormat) {
  const Json format = {{"response_format", {{"type", "json_object"}}}};
  EXPECT_TRUE(prompt(format, false).ends_with("assistant\n<think>\n\n</think>\n\n"));
  for (const bool opens : {false, true}) {
    const Json said = message(format, opens, "{\"a\": 1}");
    EXPECT_EQ(said["content"], "{\"a\": 1}");
    EXPECT_FALSE(said.contains("reasoning_content"));
  }
}

// Returns whether the request's grammar accepts all tokens of the text.
bool takes(const GenerationRequest& request, const Tokenizer& tokenizer, const std::string& text) {
  const auto grammar = request.grammar->clone();
  const auto tokens = tokenizer.encode(text, /*add_special=*/false, /*parse_special=*/true).value();
  return std::ranges::all_of(
      tokens, [&](std::int32_t token) { return grammar->allows(token) && grammar->accept(token).ok(); });
}

TEST_F(Thoughts, MayGoBeforeACallThatIsRequired) {
  for (const bool opens : {false, true}) {
    Json body = tools();
    body["tool_choice"] = "required";
    const ApiRequest wanted = request(body, opens);
    const auto is_taken = [&](const std::string& text) {
      return takes(wanted.prompts.front(), engine_->tokenizer(), text);
    };
    const std::string start = opens ? "" : "<think>\n";
    EXPECT_TRUE(is_taken(start + "I look.\n</think>\n\n" + kTaggedCall));
    EXPECT_TRUE(is_taken(start + "Not <tool_call> yet\n</think>\n\n<tool_call>\n{\"name\": \"weather\""));
    EXPECT_FALSE(is_taken(start + "I look.\n</think>\n\nNo.")) << opens;
    // Without an open thought, the text is a call. Within a thought, the text is part of the thought.
    EXPECT_EQ(is_taken(kTaggedCall), true);
  }
}

TEST_F(Thoughts, MayNameATagWithoutCalling) {
  const ApiRequest wanted = request(tools(), false);
  const auto is_taken = [&](const std::string& text) {
    return takes(wanted.prompts.front(), engine_->tokenizer(), text);
  };
  EXPECT_TRUE(is_taken("<think>\nNot <tool_call>\n yet.\n</think>\n\nNo."));
  EXPECT_FALSE(is_taken("<think>\na\n</think>\n\n<tool_call>\n{\"name\": \"news\""));
  EXPECT_FALSE(is_taken("<tool_call>\n{\"name\": \"news\""));
}

TEST_F(Thoughts, AreBlocksOfAnthropicsApi) {
  const Json body = {{"max_tokens", 9},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                     {"tools", {{{"name", "weather"}, {"input_schema", kWeather["parameters"]}}}},
                     {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}};
  ParsedRequest parsed =
      parse_messages_request(body, engine_->tokenizer(), {.chat_template = templates_[1].get()});
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(parsed)) << std::get<ApiError>(parsed).message;
  const auto& wanted = std::get<ApiRequest>(parsed);
  MessagesResponse whole("m", wanted.tool_format), events("m", wanted.tool_format);
  std::string stream = events.start_events({});
  for (const std::string& text :
       {std::string("So.\n"), std::string("</think>\n\nI look.\n"), std::string(kFencedCall)}) {
    const AnswerPart part{.text = text,
                          .end = text == kFencedCall ? GenerationEnd::finished : GenerationEnd::none};
    whole.add(part);
    stream += events.part_events(part);
  }
  stream += events.end_events({});
  const Json message = whole.whole({});
  ASSERT_EQ(message["content"].size(), 3U) << message.dump();
  EXPECT_EQ(message["content"][0]["type"], "thinking");
  EXPECT_EQ(message["content"][0]["thinking"], "So.");
  EXPECT_FALSE(message["content"][0]["signature"].get<std::string>().empty());
  EXPECT_EQ(message["content"][1], (Json{{"type", "text"}, {"text", "I look."}}));
  EXPECT_EQ(message["content"][2]["name"], "weather");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  std::vector<std::string> kinds;
  for (std::size_t at = stream.find("data: "); at != std::string::npos; at = stream.find("data: ", at + 1)) {
    const Json event = parse_json(stream.substr(at + 6, stream.find('\n', at) - at - 6)).value();
    if (event.contains("content_block")) kinds.push_back(event["content_block"]["type"]);
    if (event["type"] == "content_block_delta") kinds.push_back(event["delta"]["type"]);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"thinking", "thinking_delta", "signature_delta", "text",
                                             "text_delta", "tool_use", "input_json_delta"}));
  // The client's next request contains the thought.
  Json next = body;
  next["messages"].push_back({{"role", "assistant"}, {"content", message["content"]}});
  next["messages"].push_back(
      {{"role", "user"},
       {"content", {{{"type", "tool_result"}, {"tool_use_id", message["content"][2]["id"]}}}}});
  parsed = parse_messages_request(next, engine_->tokenizer(), {.chat_template = templates_[1].get()});
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(parsed)) << std::get<ApiError>(parsed).message;
  EXPECT_NE(
      std::get<ApiRequest>(parsed).prompts[0].text.find("<think>\nSo.\n</think>\n\nI look.\n<tool_call>"),
      std::string::npos)
      << std::get<ApiRequest>(parsed).prompts[0].text;
}

// A NUL is an ordinary character in a message.
TEST_F(Thoughts, AndMessagesMayHaveANul) {
  const std::string nul("a\0b", 3);
  const Json turns = {{{"role", "user"}, {"content", nul}},
                      {{"role", "assistant"}, {"content", nul}, {"reasoning_content", nul}},
                      {{"role", "tool"}, {"content", nul}, {"tool_call_id", "c"}},
                      {{"role", "user"}, {"content", "go on"}}};
  const ApiRequest wanted = request({{"messages", turns}}, false);
  const GenerationRequest& made = wanted.prompts.front();
  EXPECT_NE(made.text.find("user\n" + nul + "<|im_end|>"), std::string::npos);
  EXPECT_NE(made.text.find("<think>\n" + nul + "\n</think>\n\n" + nul + "<|im_end|>"), std::string::npos);
  EXPECT_NE(made.text.find("<tool_response>\n" + nul + "\n</tool_response>"), std::string::npos);
  std::string text;
  for (const std::int32_t token : made.prompt) text += engine_->tokenizer().piece(token);
  EXPECT_NE(text.find("assistant\n<think>\n" + nul + "\n</think>\n\n" + nul + "<|im_end|>"),
            std::string::npos)
      << text;
  EXPECT_EQ(message(Json::object(), false, "<think>" + nul + "</think>" + nul)["content"], nul);
}

}  // namespace
}  // namespace kvant::thoughts_test
