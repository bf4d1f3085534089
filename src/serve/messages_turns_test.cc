#include "serve/messages_turns.h"

#include <gtest/gtest.h>

namespace kvant::messages_turns_test {
namespace {

using Json = nlohmann::ordered_json;

struct Read {
  Json json;
  std::string error, parameter;
};
Read read(Json messages) {
  messages.push_back({{"role", "user"}, {"content", "go on"}});
  const Json body = {{"messages", std::move(messages)}};
  JsonFields fields(body);
  ChatHistory conversation = read_conversation(fields);
  return {conversation.json, fields.error() ? fields.error()->message : "",
          fields.error() ? fields.error()->parameter : ""};
}
// Returns the turns that one message becomes.
Json turns(const char* role, const Json& content) {
  Read result = read({{{"role", role}, {"content", content}}});
  EXPECT_EQ(result.error, "") << content.dump();
  result.json.erase(result.json.size() - 1);
  return result.json;
}

TEST(MessagesTurns, NameTheHintsInThem) {
  const Json body = {
      {"messages",
       {{{"role", "user"},
         {"content", {{{"type", "text"}, {"text", "a"}, {"cache_control", {{"type", "ephemeral"}}}}}},
         {"id", "m"}}}}};
  JsonFields fields(body);
  const ChatHistory conversation = read_conversation(fields);
  EXPECT_FALSE(fields.error());
  EXPECT_EQ(fields.hints(),
            (std::vector<std::string>{"messages[].id", "messages[].content[].cache_control"}));
}

TEST(MessagesTurns, HaveThoughtsAndCalls) {
  const Json content = {{{"type", "thinking"}, {"thinking", "t"}, {"signature", "s"}},
                        {{"type", "redacted_thinking"}, {"data", "xyz"}},
                        {{"type", "text"}, {"text", "a"}, {"citations", nullptr}},
                        {{"type", "tool_use"},
                         {"id", "c"},
                         {"name", std::string(128, 'f')},
                         {"input", {{"n", 1}}},
                         {"caller", {{"type", "direct"}}}}};
  const Json read = turns("assistant", content);
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0]["content"], "a");
  EXPECT_EQ(read[0]["reasoning_content"], "t");
  EXPECT_EQ(read[0]["tool_calls"][0]["function"],
            (Json{{"name", std::string(128, 'f')}, {"arguments", R"({"n":1})"}}));
  EXPECT_EQ(turns("assistant", {{{"type", "thinking"}, {"thinking", "t"}, {"signature", "s"}}}),
            Json::array({{{"role", "assistant"}, {"content", ""}, {"reasoning_content", "t"}}}));
}

TEST(MessagesTurns, MayBeOfTheSystemAnywhere) {
  EXPECT_EQ(turns("system", "be brief"), Json::array({{{"role", "system"}, {"content", "be brief"}}}));
  EXPECT_EQ(
      turns("system",
            {{{"type", "text"}, {"text", "a"}, {"cache_control", {{"type", "ephemeral"}}}}})[0]["content"],
      "a");
}

TEST(MessagesTurns, HaveWhatToolsGave) {
  const auto result = [](const Json& content, bool is_error = false) {
    return turns(
        "user",
        {{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", content}, {"is_error", is_error}}});
  };
  const auto tool = [](const char* text) {
    return Json::array({{{"role", "tool"}, {"content", text}, {"tool_call_id", "c"}}});
  };
  EXPECT_EQ(result("a"), tool("a"));
  EXPECT_EQ(result("a", true), tool("error: a"));
  EXPECT_EQ(result(nullptr), tool(""));
  EXPECT_EQ(result(Json::array()), tool(""));
  EXPECT_EQ(result({{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}), tool("ab"));
  EXPECT_EQ(result({{{"type", "tool_reference"}, {"tool_name", "news"}}}), tool("news"));
}

TEST(MessagesTurns, AreRefusedWithTheBlockThatIsNoText) {
  const auto refused = [](const char* role, const Json& content) {
    const Read result = read({{{"role", "user"}, {"content", "a"}}, {{"role", role}, {"content", content}}});
    return result.parameter + ": " + result.error;
  };
  const Json text = {{"type", "text"}, {"text", "a"}},
             image = {{"type", "image"}, {"source", {{"type", "url"}}}};
  EXPECT_TRUE(refused("user", {text, image})
                  .starts_with("messages[1].content[1].type: 'messages[1].content[1]' has the type 'image'"));
  EXPECT_TRUE(refused("user", {{{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", {text, image}}}})
                  .starts_with("messages[1].content[0].content[1].type: 'messages[1].content[0].content[1]' "
                               "has the type 'image'"));
  EXPECT_TRUE(refused("user", {{{"type", "document"}}}).starts_with("messages[1].content[0].type"));
  EXPECT_TRUE(
      refused("assistant", {{{"type", "server_tool_use"}}}).starts_with("messages[1].content[0].type"));
  EXPECT_TRUE(refused("user", 5).starts_with("messages[1].content"));
  EXPECT_TRUE(refused("king", "a").starts_with("messages[1].role"));
}

}  // namespace
}  // namespace kvant::messages_turns_test
