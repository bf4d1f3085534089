#include "chat/untagged_calls.h"

#include <gtest/gtest.h>

namespace kvant::untagged_calls_test {
namespace {

using Json = nlohmann::ordered_json;

const Json kParameters = Json::parse(R"({"type": "object", "properties": {"city": {"type": "string"}}})");
const Json kFunctions =
    Json::array({{{"type", "function"}, {"function", {{"name", "weather"}, {"parameters", kParameters}}}},
                 {{"type", "function"}, {"function", {{"name", "news"}}}}});

struct Read {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Read&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Read& read) {
  out << '"' << read.text << '"';
  for (const auto& [name, arguments] : read.calls) out << " " << name << arguments;
  return out;
}

Read read(const std::string& text, std::size_t step, bool is_call_next = false) {
  UntaggedCalls reader(kFunctions);
  Read all;
  const auto take = [&](const UntaggedCalls::Found& found) {
    all.text += found.text;
    for (const WrittenCall& call : found.calls) all.calls.emplace_back(call.name, call.arguments);
  };
  for (std::size_t i = 0; i < text.size(); i += step) take(reader.add(text.substr(i, step)));
  take(reader.finish(is_call_next));
  return all;
}
void expect(const std::string& text, const Read& wanted) {
  for (const std::size_t step : {1, 2, 3, 7, 10'000})
    EXPECT_EQ(read(text, step), wanted) << text << " by " << step;
}

const std::string kCall = R"({"name": "weather", "arguments": {"city": "Ghent"}})";
const std::pair<std::string, std::string> kWeather{"weather", R"({"city":"Ghent"})"};
const std::pair<std::string, std::string> kNews{"news", "{}"};

TEST(UntaggedCalls, AreReadInEveryWrapperThatModelsUse) {
  const Read one{"", {kWeather}};
  expect(kCall, one);
  expect("\n  " + kCall + "\n", one);
  expect("```json\n" + kCall + "\n```", one);
  expect("```\n" + kCall + "\n```\n", one);
  expect("```json\n" + kCall, one);  // the fence was cut off
  expect("```json\n" + kCall + "\n``", one);
  expect("```xml\n<tool_call>\n" + kCall + "\n</tool_call>\n```", one);
  expect("<tools>\n" + kCall + "\n</tools>", one);
  expect("<tool_call>\n" + kCall + "\n</tool_call>", one);
  expect("<function_call>" + kCall + "</function_c", one);
  expect(kCall + "\n</tool_call>", one);  // the opening tag was lost
  expect(R"({"name": "weather", "parameters": {"city": "Ghent"}})", one);
  expect(R"({"type": "function", "function": {"name": "weather", "arguments": {"city": "Ghent"}}})", one);
  expect(R"({"arguments": {"city": "Ghent"}, "name": "weather", "id": "c1"})", one);
  expect("[" + kCall + "]", one);
  const std::string other = R"({"name": "news", "arguments": {}})";
  const Read two{"", {kWeather, kNews}};
  expect("[" + kCall + ", " + other + "]", two);
  expect("```json\n[\n" + kCall + ",\n" + other + "\n]\n```", two);
  expect("```json\n" + kCall + "\n" + other + "\n```", two);
  expect(kCall + "\n" + other, two);
  expect("```json\n" + kCall + "\n```\n\n```json\n" + other + "\n```", two);
  expect("<tools>" + kCall + "</tools>\n<tools>" + other + "</tools>", two);
}

TEST(UntaggedCalls, LeaveTheTextAroundThem) {
  expect("I look.\n\n```json\n" + kCall + "\n```", {"I look.", {kWeather}});
  expect("I look: " + kCall + " Then I tell.", {"I look: Then I tell.", {kWeather}});
  expect("```json\n" + kCall + "\n```\n\nIt rains.\n", {"It rains.\n", {kWeather}});
  expect("a\n```json\n" + kCall + "\nb\n```\n{c}", {"a\nb\n```\n{c}", {kWeather}});
  EXPECT_EQ(read("I look.\n```xml\n", 1, /*is_call_next=*/true), (Read{"I look.", {}}));
  EXPECT_EQ(read("I look.\n```xml\n<", 1, /*is_call_next=*/true), (Read{"I look.\n```xml\n<", {}}));
}

TEST(UntaggedCalls, AreOnlyWhatCallsAnOfferedToolWithAnObject) {
  for (
      const std::string text : {
          R"({"name": "weather", "arguments": "Ghent"})",
          R"({"name": "weather", "arguments": ["Ghent"]})",
          R"({"name": "weather"})",
          R"({"name": "rain", "arguments": {"city": "Ghent"}})",
          R"({"name": "weather", "arguments": {"city": "Ghent"}, "colour": 1})",
          R"({"name": "weather", "description": "of a city", "parameters": {"type": "object"}})",
          R"({"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}})",
          R"({"people": [{"name": "weather", "arguments": {"city": "Ghent"}}]})",
          R"([{"name": "weather", "arguments": {}}, {"name": "x", "arguments": {}}])",
          R"({"name": "weather", "arguments": {"city": "Ghe)",
          R"({"name": "weather", "arguments": {"city": Ghent}})",
          "```json\n{\"name\": \"wea",
          "```python\nprint({\"name\": \"weather\", \"arguments\": {}})\n```\nand so on\n",
          "```\n{\"a\": 1}\n```\n",
          "`{}` and ``x`` and ```",
          "a < b, {x}, [1, 2], <tool, <tools> are <tool_call>",
          "{\n\n[{ <",
          "  text \n\n",
          "",
      })
    expect(text, {text, {}});
}

TEST(UntaggedCalls, ComeAfterJsonThatIsNone) {
  expect(R"({"a": "}{"} )" + kCall, {R"({"a": "}{"})", {kWeather}});
  expect("{\"a\" is no JSON\n\n" + kCall, {"{\"a\" is no JSON", {kWeather}});
  expect("```\ncode\n```\n" + kCall, {"```\ncode\n```", {kWeather}});
}

TEST(UntaggedCalls, HoldBackNoMoreThanMayBeACall) {
  UntaggedCalls reader(kFunctions);
  EXPECT_EQ(reader.add("Look: ").text, "Look:");
  EXPECT_EQ(reader.add("a").text, " a");
  EXPECT_EQ(reader.add(" {\"na").text, "");
  EXPECT_EQ(reader.add("me\": \"weather\"").text, "");
  EXPECT_EQ(reader.add(", \"age\": ").text, R"( {"name": "weather", "age":)");
  EXPECT_EQ(reader.add("3").text, " 3");
  EXPECT_EQ(reader.add("}\n```json\n").text, "}");
  EXPECT_EQ(reader.add("{\"name\": \"w").text, "");
  EXPECT_EQ(reader.add("x").text, "\n```json\n{\"name\": \"wx");
}

}  // namespace
}  // namespace kvant::untagged_calls_test
