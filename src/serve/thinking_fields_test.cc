#include "serve/thinking_fields.h"

#include <gtest/gtest.h>

namespace kvant::thinking_fields_test {
namespace {

using Json = nlohmann::ordered_json;

// Returns the options that `reader` reads, in one line, or the name of the wrong parameter.
std::string read(const Json& body, ThinkingOptions (*reader)(JsonFields&)) {
  JsonFields fields(body);
  const ThinkingOptions options = reader(fields);
  if (fields.error()) return fields.error()->parameter;
  const ThinkingWish& wish = options.wish;
  std::string line = !wish.thinks ? "" : wish.is_adaptive ? "adaptive" : *wish.thinks ? "on" : "off";
  if (wish.token_budget) line += std::to_string(*wish.token_budget);
  return line + wish.effort + (options.splits_thoughts ? "" : " in the text");
}
std::string chat(const Json& body) {
  return read(body, read_chat_thinking);
}
std::string messages(const Json& body) {
  return read(body, read_messages_thinking);
}

TEST(ThinkingFields, AreReadAsClientsSendThem) {
  EXPECT_EQ(chat(Json::object()), "");
  EXPECT_EQ(chat({{"reasoning_effort", "high"}}), "high");
  EXPECT_EQ(chat({{"reasoning_effort", nullptr}}), "");
  EXPECT_EQ(chat({{"reasoning", {{"effort", "low"}, {"summary", "auto"}}}}), "low");
  EXPECT_EQ(chat({{"reasoning", {{"enabled", false}}}}), "off");
  EXPECT_EQ(chat({{"thinking", {{"type", "disabled"}}}}), "off");
  EXPECT_EQ(chat({{"enable_thinking", true}}), "on");
  EXPECT_EQ(chat({{"reasoning_format", "none"}}), " in the text");
  EXPECT_EQ(chat({{"reasoning_format", "deepseek"}}), "");
  EXPECT_EQ(messages({{"thinking", {{"type", "enabled"}, {"budget_tokens", 2048}}}}), "on2048");
  EXPECT_EQ(messages({{"thinking", {{"type", "disabled"}}}}), "off");
  EXPECT_EQ(messages({{"thinking", {{"type", "adaptive"}, {"display", "omitted"}}},
                      {"output_config", {{"effort", "max"}}}}),
            "adaptivemax");
}

TEST(ThinkingFields, AreRefusedByName) {
  EXPECT_EQ(chat({{"reasoning_effort", "enormous"}}), "reasoning_effort");
  EXPECT_EQ(chat({{"reasoning_effort", 5}}), "reasoning_effort");
  EXPECT_EQ(chat({{"reasoning", {{"effort", "x"}}}}), "reasoning.effort");
  EXPECT_EQ(chat({{"reasoning_format", "x"}}), "reasoning_format");
  EXPECT_EQ(messages({{"thinking", {{"type", "x"}}}}), "thinking.type");
  EXPECT_EQ(messages({{"thinking", {{"type", "enabled"}, {"budget_tokens", -1}}}}), "thinking.budget_tokens");
  EXPECT_EQ(messages({{"output_config", {{"effort", "x"}}}}), "output_config.effort");
}

}  // namespace
}  // namespace kvant::thinking_fields_test
