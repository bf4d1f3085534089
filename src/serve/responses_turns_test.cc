#include "serve/responses_turns.h"

#include <gtest/gtest.h>

namespace kvant::responses_turns_test {
namespace {

using Json = nlohmann::ordered_json;

struct Read {
  Json turns;
  bool calls_tools = false;
  std::string error, parameter;
};
Read read(const Json& body) {
  JsonFields fields(body);
  const ChatHistory conversation = read_input(fields);
  return {conversation.json, conversation.calls_tools, fields.error() ? fields.error()->message : "",
          fields.error() ? fields.error()->parameter : ""};
}
Json turns(const Json& input, const Json& more = Json::object()) {
  Json body = {{"input", input}};
  body.update(more);
  const Read result = read(body);
  EXPECT_EQ(result.error, "") << body.dump();
  return result.turns;
}
Json call(const char* id, const char* name, const Json& arguments) {
  return {{"type", "function_call"}, {"call_id", id}, {"name", name}, {"arguments", arguments}};
}
Json written_call(const char* id, const char* name, const char* arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}
Json reasoning(const char* text) {
  return {{"type", "reasoning"},
          {"id", "rs_1"},
          {"summary", Json::array()},
          {"content", {{{"type", "reasoning_text"}, {"text", text}}}},
          {"encrypted_content", nullptr}};
}

TEST(ResponsesInput, IsATextOrMessages) {
  EXPECT_EQ(turns("hi", {{"instructions", "be kind"}}),
            (Json{{{"role", "system"}, {"content", "be kind"}}, {{"role", "user"}, {"content", "hi"}}}));
  const Json parts = {{{"type", "output_text"}, {"text", "a"}, {"annotations", Json::array()}},
                      {{"type", "output_text"}, {"text", "b"}}};
  EXPECT_EQ(turns({{{"role", "user"}, {"content", "hi"}},
                   {{"type", "message"},
                    {"id", "msg_1"},
                    {"status", "completed"},
                    {"role", "assistant"},
                    {"content", parts}}}),
            (Json{{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "ab"}}}));
}

TEST(ResponsesInput, HasOneSystemTurnAtItsStart) {
  const Json developer = {{"type", "message"},
                          {"role", "developer"},
                          {"content", {{{"type", "input_text"}, {"text", "ask first"}}}}};
  const Json user = {{"role", "user"}, {"content", "hi"}};
  EXPECT_EQ(turns({developer, user, developer}, {{"instructions", "be kind"}}),
            (Json{{{"role", "system"}, {"content", "be kind\n\nask first"}},
                  user,
                  {{"role", "system"}, {"content", "ask first"}}}));
}

TEST(ResponsesInput, JoinsReasoningTextAndCallsIntoOneTurn) {
  const Json said = {{"role", "assistant"}, {"content", "I look."}};
  const Json output = {{"type", "function_call_output"},
                       {"call_id", "c2"},
                       {"output", {{{"type", "input_text"}, {"text", "3"}}}}};
  const Read result = read({{"input",
                             {{{"role", "user"}, {"content", "hi"}},
                              reasoning("Hm."),
                              said,
                              call("c1", "f", R"({"a": 1})"),
                              call("c2", "g", ""),
                              {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "2"}},
                              output,
                              call("c3", "f", "{}"),
                              reasoning("Hm again."),
                              call("c4", "f", "{}")}}});
  EXPECT_EQ(result.error, "");
  EXPECT_TRUE(result.calls_tools);
  EXPECT_EQ(result.turns,
            (Json{{{"role", "user"}, {"content", "hi"}},
                  {{"role", "assistant"},
                   {"content", "I look."},
                   {"reasoning_content", "Hm."},
                   {"tool_calls", {written_call("c1", "f", R"({"a": 1})"), written_call("c2", "g", "{}")}}},
                  {{"role", "tool"}, {"content", "2"}, {"tool_call_id", "c1"}},
                  {{"role", "tool"}, {"content", "3"}, {"tool_call_id", "c2"}},
                  {{"role", "assistant"},
                   {"content", ""},
                   {"tool_calls", Json::array({written_call("c3", "f", "{}")})}},
                  {{"role", "assistant"},
                   {"content", ""},
                   {"reasoning_content", "Hm again."},
                   {"tool_calls", Json::array({written_call("c4", "f", "{}")})}}}));
}

TEST(ResponsesInput, TakesASummaryForThoughtsThatItLacks) {
  const Json summary = {{"type", "reasoning"},
                        {"summary", {{{"type", "summary_text"}, {"text", "It thought."}}}},
                        {"encrypted_content", "gAAAA"}};
  EXPECT_EQ(turns({summary, {{"role", "assistant"}, {"content", "a"}}}),
            (Json::array({{{"role", "assistant"}, {"content", "a"}, {"reasoning_content", "It thought."}}})));
  // A thought without a following assistant's turn must not go to a later turn.
  EXPECT_EQ(turns({reasoning("Hm."),
                   {{"role", "user"}, {"content", "a"}},
                   {{"role", "assistant"}, {"content", "b"}}}),
            (Json{{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}}));
}

TEST(ResponsesInput, NamesWhatCanNotBeRead) {
  EXPECT_EQ(read(Json::object()).parameter, "input");
  EXPECT_EQ(read({{"input", Json::array()}}).parameter, "input");
  EXPECT_EQ(read({{"input", 5}}).parameter, "input");
  EXPECT_EQ(read({{"input", "a"}, {"instructions", 5}}).parameter, "instructions");
  const auto parameter = [](const Json& item) {
    return read({{"input", {{{"role", "user"}, {"content", "a"}}, item}}}).parameter;
  };
  EXPECT_EQ(parameter({{"type", "item_reference"}, {"id", "msg_1"}}), "input[1].type");
  EXPECT_EQ(parameter({{"role", "robot"}, {"content", "a"}}), "input[1].role");
  EXPECT_EQ(parameter({{"role", "user"}, {"content", {{{"type", "input_image"}}}}}),
            "input[1].content[0].type");
  EXPECT_EQ(parameter({{"type", "function_call"}, {"arguments", "{}"}}), "input[1].name");
  EXPECT_EQ(parameter({{"type", "function_call_output"}, {"output", 5}}), "input[1].output");
  EXPECT_EQ(parameter({{"type", "function_call_output"}, {"output", {{{"type", "input_file"}}}}}),
            "input[1].output[0].type");
  EXPECT_EQ(parameter("a"), "input[1]");
}

}  // namespace
}  // namespace kvant::responses_turns_test
