#include "serve/chat_turns.h"

#include <gtest/gtest.h>

namespace kvant::chat_turns_test {
namespace {

using Json = nlohmann::ordered_json;

struct Read {
  Json json;
  std::string error, parameter;
  std::vector<std::string> hints;
};
Read read(const Json& message) {
  const Json nothing = Json::object();
  JsonFields fields(nothing);
  ChatHistory conversation;
  read_chat_turn(message, "messages[3]", fields, conversation);
  return {conversation.json, fields.error() ? fields.error()->message : "",
          fields.error() ? fields.error()->parameter : "", fields.hints()};
}
Json turn(const Json& message) {
  const Read result = read(message);
  EXPECT_EQ(result.error, "") << message.dump();
  return result.json.at(0);
}
Json called(const Json& arguments) {
  const Json function = {{"name", "f"}, {"arguments", arguments}};
  const Json calls = Json::array({{{"id", "c"}, {"type", "function"}, {"function", function}}});
  return turn({{"role", "assistant"},
               {"content", nullptr},
               {"tool_calls", calls}})["tool_calls"][0]["function"]["arguments"];
}

TEST(ChatTurns, AreTakenWithTheHintsThatClientsSend) {
  const Json cached = {{"type", "text"}, {"text", "a"}, {"cache_control", {{"type", "ephemeral"}}}};
  EXPECT_EQ(turn({{"role", "user"}, {"content", Json::array({cached})}, {"name", "me"}}),
            (Json{{"role", "user"}, {"content", "a"}, {"name", "me"}}));
  EXPECT_EQ(turn({{"role", "assistant"},
                  {"content", "a"},
                  {"refusal", nullptr},
                  {"audio", nullptr},
                  {"function_call", nullptr},
                  {"tool_calls", nullptr},
                  {"annotations", Json::array()},
                  {"id", "msg_1"},
                  {"cache_control", {{"type", "ephemeral"}}}}),
            (Json{{"role", "assistant"}, {"content", "a"}}));
  EXPECT_EQ(read({{"role", "user"}, {"content", Json::array({cached})}, {"id", "m"}}).hints,
            (std::vector<std::string>{"messages[].content[].cache_control", "messages[].id"}));
  EXPECT_EQ(turn({{"role", "developer"}, {"content", "a"}}), (Json{{"role", "system"}, {"content", "a"}}));
}

TEST(ChatTurns, HavePartsOfText) {
  const Json parts = {{{"type", "input_text"}, {"text", "a"}},
                      {{"type", "output_text"}, {"text", "b"}, {"annotations", Json::array()}},
                      {{"type", "refusal"}, {"refusal", "c"}},
                      "d"};
  EXPECT_EQ(turn({{"role", "assistant"}, {"content", parts}})["content"], "abcd");
  for (const char* type : {"image_url", "input_audio", "file", "input_image", "video_url"}) {
    const Read refused =
        read({{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", type}}}}});
    EXPECT_EQ(refused.parameter, "messages[3].content[1].type");
    EXPECT_NE(refused.error.find("'messages[3].content[1]' has the type '" + std::string(type)),
              std::string::npos)
        << refused.error;
  }
  EXPECT_EQ(read({{"role", "user"}, {"content", {{{"type", "text"}, {"text", 5}}}}}).parameter,
            "messages[3].content[0].text");
  EXPECT_EQ(read({{"role", "assistant"}, {"content", "a"}, {"audio", {{"id", "x"}}}}).parameter,
            "messages[3].audio");
  EXPECT_EQ(read({{"role", "user"}, {"content", "a"}, {"images", {"x"}}}).parameter, "messages[3].images");
}

TEST(ChatTurns, MayHaveNothingToSay) {
  const Json calls = Json::array({{{"id", "c"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}});
  for (const Json& nothing : {Json(nullptr), Json(""), Json(Json::array())}) {
    EXPECT_EQ(turn({{"role", "assistant"}, {"content", nothing}, {"tool_calls", calls}})["content"], "");
    EXPECT_EQ(turn({{"role", "tool"}, {"content", nothing}, {"tool_call_id", "c"}}),
              (Json{{"role", "tool"}, {"content", ""}, {"tool_call_id", "c"}}));
    EXPECT_EQ(turn({{"role", "assistant"}, {"content", nothing}})["content"], "");
  }
  EXPECT_EQ(read({{"role", "user"}}).parameter, "messages[3].content");
  EXPECT_EQ(turn({{"role", "assistant"}, {"content", nullptr}, {"refusal", "no"}})["content"], "no");
}

// A call that a token limit cut off must not end the conversation.
TEST(ChatTurns, TakeTheArgumentsOfCallsAsTheyAre) {
  EXPECT_EQ(called(R"({"city": "Ghent"})"), R"({"city": "Ghent"})");
  EXPECT_EQ(called({{"city", "Ghent"}}), R"({"city":"Ghent"})");
  EXPECT_EQ(called(""), "{}");
  EXPECT_EQ(called(" \n"), "{}");
  EXPECT_EQ(called(nullptr), "{}");
  EXPECT_EQ(called("null"), "{}");
  EXPECT_EQ(called(R"({"city": "Gh)"), R"({"arguments":"{\"city\": \"Gh"})");
  EXPECT_EQ(called("Ghent"), R"({"arguments":"Ghent"})");
  EXPECT_EQ(called(R"("{\"city\": \"Ghent\"}")"), R"({"city":"Ghent"})");
  EXPECT_EQ(called({1, 2}), R"({"arguments":[1,2]})");
  EXPECT_EQ(called(std::string(200, '[')), R"({"arguments":")" + std::string(200, '[') + R"("})");
}

TEST(ChatTurns, TakeCallsByTheirOlderName) {
  const Json call = turn(
      {{"role", "assistant"}, {"content", nullptr}, {"function_call", {{"name", "f"}, {"arguments", "{}"}}}});
  EXPECT_EQ(call["tool_calls"][0]["function"], (Json{{"name", "f"}, {"arguments", "{}"}}));
  EXPECT_EQ(turn({{"role", "function"}, {"name", "f"}, {"content", "1"}}),
            (Json{{"role", "tool"}, {"content", "1"}, {"name", "f"}, {"tool_call_id", ""}}));
}

TEST(ChatTurns, NameTheCallThatIsWrong) {
  const auto parameter = [](const Json& call) {
    return read({{"role", "assistant"},
                 {"content", ""},
                 {"tool_calls", {{{"function", {{"name", "f"}}}}, call}}})
        .parameter;
  };
  EXPECT_EQ(parameter({{"type", "web_search"}}), "messages[3].tool_calls[1].type");
  EXPECT_EQ(parameter({{"id", "x"}}), "messages[3].tool_calls[1].function");
  EXPECT_EQ(parameter({{"function", {{"arguments", "{}"}}}}), "messages[3].tool_calls[1].function.name");
  EXPECT_EQ(read({{"role", "user"}, {"content", "a"}, {"tool_calls", {1}}}).parameter,
            "messages[3].tool_calls");
}

TEST(ChatTurns, HaveThoughts) {
  EXPECT_EQ(turn({{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "t"}}),
            (Json{{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "t"}}));
  EXPECT_EQ(turn({{"role", "assistant"}, {"content", "a"}, {"reasoning", "t"}})["reasoning_content"], "t");
  const Json parts = {{{"type", "thinking"}, {"thinking", {{{"type", "text"}, {"text", "t"}}}}},
                      {{"type", "text"}, {"text", "a"}}};
  EXPECT_EQ(turn({{"role", "assistant"}, {"content", parts}}),
            (Json{{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "t"}}));
  EXPECT_FALSE(turn({{"role", "assistant"}, {"content", "a"}, {"reasoning_content", ""}})
                   .contains("reasoning_content"));
}

}  // namespace
}  // namespace kvant::chat_turns_test
