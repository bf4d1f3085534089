#include "serve/messages_api.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "serve/serve_fixture.h"

namespace kvant::messages_api_test {
namespace {

using Json = nlohmann::ordered_json;

const testing::FakeTokenizer kTokenizer;
const testing::FakeChatTemplate kTemplate;

ParsedRequest parsed(const Json& more) {
  Json body = {{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return parse_messages_request(body, kTokenizer, {.chat_template = &kTemplate});
}
// Returns the name of the parameter that the error names, or "accepted" if the request is valid.
std::string wrong_parameter(const Json& more) {
  const ParsedRequest request = parsed(more);
  const auto* error = std::get_if<ApiError>(&request);
  return error == nullptr ? "accepted" : error->parameter;
}
Json text_block(const char* text) {
  return {{"type", "text"}, {"text", text}};
}

TEST(MessagesRequest, PutsSystemAndBlocksIntoTheChatTemplate) {
  Json cached = text_block("be kind");
  cached["cache_control"] = {{"type", "ephemeral"}};
  const ParsedRequest request =
      parsed({{"system", Json::array({cached})},
              {"messages",
               {{{"role", "user"}, {"content", Json::array({text_block("a"), text_block("b")})}},
                {{"role", "assistant"}, {"content", "c"}},
                {{"role", "user"}, {"content", "d"}}}},
              {"temperature", 0.5},
              {"top_p", 0.9},
              {"top_k", 7},
              {"stop_sequences", {"x", "y"}},
              {"metadata", {{"user_id", "me"}}},
              {"tools", Json::array()},
              {"guard", true},
              {"stream", true}});
  ASSERT_TRUE(std::holds_alternative<ApiRequest>(request)) << std::get<ApiError>(request).message;
  const auto& wanted = std::get<ApiRequest>(request);
  EXPECT_TRUE(wanted.stream);
  const GenerationRequest& r = wanted.prompts.at(0);
  EXPECT_EQ(r.prompt,
            kTokenizer.encode("system:be kind\nuser:ab\nassistant:c\nuser:d\n", true, true).value());
  EXPECT_EQ(r.sampling.temperature, 0.5F);
  EXPECT_EQ(r.sampling.top_p, 0.9F);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.generation.max_tokens, 5);
  EXPECT_EQ(r.generation.stops, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(r.client, "me");
  EXPECT_TRUE(r.guard);
}

TEST(MessagesRequest, TakesTheBeginningOfACompletion) {
  EXPECT_EQ(wrong_parameter({{"messages",
                              {{{"role", "user"}, {"content", "hi"}},
                               {{"role", "assistant"}, {"content", "The sum is"}}}}}),
            "accepted");
}

TEST(MessagesRequest, RefusesWhatItDoesNotHave) {
  EXPECT_EQ(wrong_parameter(Json::object()), "accepted");
  EXPECT_EQ(wrong_parameter({{"max_tokens", nullptr}}), "max_tokens");
  EXPECT_EQ(wrong_parameter({{"messages", Json::array()}}), "messages");
  EXPECT_EQ(wrong_parameter({{"messages", {{{"role", "tool"}, {"content", "x"}}}}}), "messages[0].role");
  EXPECT_EQ(wrong_parameter({{"messages", {{{"role", "user"}, {"content", 5}}}}}), "messages[0].content");
  EXPECT_EQ(wrong_parameter({{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}}),
            "messages[0].content[0].type");
  EXPECT_EQ(wrong_parameter({{"tools", {{{"name", "f"}}}}}), "tools");
  EXPECT_EQ(wrong_parameter({{"thinking", {{"type", "sometimes"}}}}), "thinking.type");
  EXPECT_EQ(wrong_parameter({{"output_config", {{"format", {{"type", "xml"}}}}}}),
            "output_config.format.type");
  EXPECT_EQ(wrong_parameter({{"system", 3}}), "system");
  EXPECT_EQ(wrong_parameter({{"metadata", 3}}), "metadata");
  EXPECT_EQ(wrong_parameter({{"top_p", 0}}), "top_p");
  EXPECT_EQ(wrong_parameter({{"session", "travel"}}), "session");
  EXPECT_EQ(wrong_parameter({{"something", 1}}), "accepted");
  EXPECT_TRUE(std::holds_alternative<ApiError>(parse_messages_request(Json::array(), kTokenizer)));
}

TEST(MessagesResponse, CollectsAnAnswer) {
  MessagesResponse response("m");
  response.add({.text = "Hel"});
  response.add({.text = "lo", .end = GenerationEnd::finished});
  const Json json = response.whole({.prompt = 10, .cached = 8, .generated = 2});
  EXPECT_EQ(json["content"][0]["text"], "Hello");
  EXPECT_EQ(json["stop_reason"], "end_turn");
  EXPECT_TRUE(json["stop_sequence"].is_null());
  EXPECT_EQ(json["usage"]["input_tokens"], 2);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 8);
  EXPECT_EQ(json["usage"]["output_tokens"], 2);
  EXPECT_FALSE(json["usage"].contains("guard"));
}

TEST(MessagesResponse, SaysWhatAGuardHasSeen) {
  MessagesResponse response("m");
  response.add({.text = "Hello", .end = GenerationEnd::finished});
  const TokenUsage usage{.prompt = 10, .generated = 4, .guard = GuardTally{4, 1, 0.5}};
  EXPECT_EQ(response.whole(usage)["usage"]["guard"].dump(), R"({"tokens":4,"differing":1,"mean_kld":0.125})");
  EXPECT_NE(response.end_events(usage).find(R"("guard":{"tokens":4)"), std::string::npos);
}

TEST(MessagesResponse, SaysWhatHasEndedIt) {
  MessagesResponse response("m", nullptr, {"STOP", "END"});
  response.add({.end = GenerationEnd::length});
  EXPECT_EQ(response.whole({})["stop_reason"], "max_tokens");
  response.add({.end = GenerationEnd::finished, .stop = "END"});
  EXPECT_EQ(response.whole({})["stop_reason"], "stop_sequence");
  EXPECT_EQ(response.whole({})["stop_sequence"], "END");
  // This stop text comes from the chat template.
  response.add({.end = GenerationEnd::finished, .stop = "<|im_end|>"});
  EXPECT_EQ(response.whole({})["stop_reason"], "end_turn");
  EXPECT_TRUE(response.whole({})["stop_sequence"].is_null());
}

TEST(MessagesResponse, SendsEventsWithTheirNames) {
  MessagesResponse response("m");
  const AnswerPart part{.text = "a\nb", .end = GenerationEnd::finished};
  std::string text = response.start_events({.prompt = 10, .cached = 8});
  text += response.part_events(part);
  text += response.end_events({.generated = 3});
  std::vector<std::string> types;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line = text.find('\n', at), end = text.find("\n\n", at);
    const std::string name = text.substr(at, line - at), data = text.substr(line + 1, end - line - 1);
    ASSERT_TRUE(data.starts_with("data: "));
    const auto json = parse_json(data.substr(6));
    ASSERT_TRUE(json.ok()) << data;
    types.push_back((*json)["type"]);
    if (types.back() == "message_start") {
      const Json& usage = (*json)["message"]["usage"];
      EXPECT_EQ(usage["input_tokens"], 2);
      EXPECT_EQ(usage["cache_read_input_tokens"], 8);
    }
    EXPECT_EQ(name, "event: " + types.back());
    at = end + 2;
  }
  EXPECT_EQ(types, (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                             "content_block_stop", "message_delta", "message_stop"}));
}

}  // namespace
}  // namespace kvant::messages_api_test
