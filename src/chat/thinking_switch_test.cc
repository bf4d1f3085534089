#include "chat/thinking_switch.h"

#include <gtest/gtest.h>

namespace kvant::thinking_switch_test {
namespace {

using Json = nlohmann::ordered_json;

// The constants hold the lines that read the switches in the templates of the model families.
constexpr const char* kQwen3 =
    "{%- if enable_thinking is defined and enable_thinking is false %}off{% endif %}";
constexpr const char* kGranite = "{%- if thinking %}Think, {{ message.reasoning_effort }}{% endif %}";
constexpr const char* kGptOss =
    "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = \"medium\" %}{%- endif %}"
    "{{- \"Reasoning: \" + reasoning_effort }}";
constexpr const char* kHunyuan =
    "{%- if not reasoning_effort is defined %}{%- set reasoning_effort = 'no_think' %}"
    "{%- elif reasoning_effort not in ['high', 'low', 'no_think'] %}{{ raise_exception('x') }}{% endif %}";
constexpr const char* kSeed = "{%- if thinking_budget == 0 %}no thoughts{% endif %}";
constexpr const char* kMiniMax = "{%- if thinking_mode == \"adaptive\" -%}";
constexpr const char* kPlain = "In the process of thinking {{ message.thinking }} {{ 'enable_thinking' }}";

std::string values(const ThinkingWish& wish, const char* source, Json given = Json::object()) {
  const bool has_switch = set_thinking(wish, template_words(source), given);
  return given.dump() + (has_switch ? "" : " no switch");
}

TEST(ThinkingSwitch, HasTheNameThatTheTemplateHas) {
  const ThinkingWish off{.thinks = false}, on{.thinks = true}, budget{.thinks = true, .token_budget = 512};
  EXPECT_EQ(values(off, kQwen3), R"({"enable_thinking":false})");
  EXPECT_EQ(values(on, kQwen3), R"({"enable_thinking":true})");
  EXPECT_EQ(values(on, kGranite), R"({"thinking":true})");
  EXPECT_EQ(values(off, kHunyuan), R"({"reasoning_effort":"no_think"})");
  EXPECT_EQ(values(off, kGptOss), R"({"reasoning_effort":"low"})");  // this template's model always thinks
  EXPECT_EQ(values(on, kGptOss), "{}");
  EXPECT_EQ(values(budget, kSeed), R"({"thinking_budget":512})");
  EXPECT_EQ(values(off, kSeed), R"({"thinking_budget":0})");
  EXPECT_EQ(values({.thinks = true, .is_adaptive = true}, kMiniMax), R"({"thinking_mode":"adaptive"})");
  EXPECT_EQ(values(off, kMiniMax), R"({"thinking_mode":"disabled"})");
  EXPECT_EQ(values(on, kPlain), "{} no switch");
  EXPECT_EQ(values({}, kQwen3), "{}");
}

TEST(ThinkingSwitch, TakesAnEffort) {
  const auto effort = [](const char* name) { return ThinkingWish{.effort = name}; };
  EXPECT_EQ(values(effort("high"), kGptOss), R"({"reasoning_effort":"high"})");
  EXPECT_EQ(values(effort("minimal"), kGptOss), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(values(effort("none"), kGptOss), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(values(effort("xhigh"), kGptOss), R"({"reasoning_effort":"high"})");
  // This template raises an exception for any other effort.
  EXPECT_EQ(values(effort("medium"), kHunyuan), R"({"reasoning_effort":"low"})");
  EXPECT_EQ(values(effort("none"), kHunyuan), R"({"reasoning_effort":"no_think"})");
  EXPECT_EQ(values(effort("low"), kQwen3), R"({"enable_thinking":true})");
  EXPECT_EQ(values(effort("none"), kQwen3), R"({"enable_thinking":false})");
  EXPECT_EQ(values(effort("minimal"), kQwen3), R"({"enable_thinking":false})");
  EXPECT_EQ(values(effort("high"), kPlain), "{} no switch");
}

TEST(ThinkingSwitch, LeavesValuesThatAreGiven) {
  EXPECT_EQ(values({.thinks = true}, kQwen3, {{"enable_thinking", false}}), R"({"enable_thinking":false})");
  EXPECT_EQ(values({}, kGranite, {{"enable_thinking", true}}), R"({"enable_thinking":true,"thinking":true})");
  EXPECT_EQ(values({.effort = "high"}, kGptOss, {{"reasoning_effort", "low"}}),
            R"({"reasoning_effort":"low"})");
}

}  // namespace
}  // namespace kvant::thinking_switch_test
