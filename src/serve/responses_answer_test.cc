#include "serve/responses_answer.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "serve/serve_fixture.h"

namespace kvant::responses_answer_test {
namespace {

using Json = nlohmann::ordered_json;

const testing::FakeTokenizer kTokenizer;

// FakeReader reads "!..." as a thought, "call" as a tool call, and anything else as text.
class FakeReader : public ToolAnswer {
 public:
  AnswerDelta add(const std::string& text) override {
    if (text.starts_with("!")) return {.thought = text.substr(1)};
    if (!text.starts_with("call")) return {.text = text};
    calls_ = true;
    ToolCallPart part{.index = 0, .arguments = text.substr(4)};
    if (part.arguments == "{") part.id = "c1", part.name = "look";
    return {.calls = {part}};
  }
  AnswerDelta finish(bool) override { return {}; }
  bool has_calls() const override { return calls_; }
  bool is_complete() const override { return false; }

 private:
  bool calls_ = false;
};
class FakeFormat : public ToolFormat {
 public:
  std::unique_ptr<ToolAnswer> read() const override { return std::make_unique<FakeReader>(); }
};

std::vector<Json> events_of(const std::string& text) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line = text.find('\n', at), end = text.find("\n\n", at);
    const auto json = parse_json(text.substr(line + 7, end - line - 7));
    EXPECT_TRUE(json.ok()) << text;
    EXPECT_EQ(text.substr(at, line - at), "event: " + (*json)["type"].get<std::string>());
    EXPECT_EQ((*json)["sequence_number"], events.size());
    events.push_back(*json);
    at = end + 2;
  }
  return events;
}
std::string types(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events) text += event["type"].get<std::string>().substr(9) + "\n";
  return text;
}

TEST(ResponsesAnswer, StreamsReasoningTextAndCalls) {
  ResponsesAnswer answer(Json{{"instructions", "be kind"}}, "m", std::make_shared<FakeFormat>(), kTokenizer);
  std::string text = answer.start_events();
  for (const char* part : {"!ab", "!c", "Hel", "lo", "call{", "call}"})
    text += answer.part_events({.text = part});
  text += answer.part_events({.end = GenerationEnd::finished});
  text += answer.end_events({.prompt = 10, .cached = 8, .generated = 6});
  const std::vector<Json> events = events_of(text);
  EXPECT_EQ(types(events),
            "created\nin_progress\n"
            "output_item.added\ncontent_part.added\nreasoning_text.delta\nreasoning_text.delta\nreasoning_"
            "text.done\n"
            "content_part.done\noutput_item.done\n"
            "output_item.added\ncontent_part.added\noutput_text.delta\noutput_text.delta\noutput_text.done\n"
            "content_part.done\noutput_item.done\n"
            "output_item.added\nfunction_call_arguments.delta\nfunction_call_arguments.delta\n"
            "function_call_arguments.done\noutput_item.done\n"
            "completed\n");
  const Json whole = events.back()["response"];
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["instructions"], "be kind");
  ASSERT_EQ(whole["output"].size(), 3U);
  EXPECT_EQ(whole["output"][0]["content"], (Json::array({{{"type", "reasoning_text"}, {"text", "abc"}}})));
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "Hello");
  EXPECT_EQ(whole["output"][2]["call_id"], "c1");
  EXPECT_EQ(whole["output"][2]["name"], "look");
  EXPECT_EQ(whole["output"][2]["arguments"], "{}");
  EXPECT_EQ(whole["usage"]["input_tokens_details"]["cached_tokens"], 8);
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  EXPECT_EQ(whole["usage"]["total_tokens"], 16);
  // An event must name the item's index in the final response, and the last event must have the item's final
  // form.
  for (const Json& event : events) {
    if (event.contains("item_id")) {
      EXPECT_EQ(whole["output"][event["output_index"].get<int>()]["id"], event["item_id"]);
    }
    if (event["type"] == "response.output_item.done") {
      EXPECT_EQ(whole["output"][event["output_index"].get<int>()], event["item"]);
    }
    if (event["type"] == "response.output_item.added") {
      EXPECT_EQ(event["item"]["status"], "in_progress");
    }
  }
  EXPECT_EQ(answer.whole(), whole);
}

TEST(ResponsesAnswer, IsIncompleteWhereItWasCut) {
  ResponsesAnswer answer(Json::object(), "m", nullptr, kTokenizer);
  std::string text = answer.start_events();
  text += answer.part_events({.text = "Hel", .end = GenerationEnd::length});
  text += answer.end_events({.prompt = 1, .generated = 1});
  const std::vector<Json> events = events_of(text);
  EXPECT_EQ(events.back()["type"], "response.incomplete");
  const Json whole = answer.whole();
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["status"], "incomplete");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Hel");
}

TEST(ResponsesAnswer, HasOneItemAtLeast) {
  ResponsesAnswer answer(Json::object(), "m", nullptr, kTokenizer);
  answer.part_events({.end = GenerationEnd::finished});
  answer.end_events({.prompt = 1, .guard = GuardTally{4, 1, 0.5}});
  EXPECT_EQ(answer.whole()["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(answer.whole()["usage"]["guard"]["tokens"], 4);
}

TEST(ResponsesAnswer, SaysThatItHasFailed) {
  ResponsesAnswer answer(Json::object(), "m", nullptr, kTokenizer);
  std::string text = answer.start_events();
  text += answer.failure_event({.status = 500, .message = "no memory"});
  const std::vector<Json> events = events_of(text);
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["status"], "failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "no memory");
}

}  // namespace
}  // namespace kvant::responses_answer_test
