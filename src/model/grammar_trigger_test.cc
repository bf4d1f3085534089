// Tests the words, patterns and tokens that make a lazy grammar apply.
#include "model/grammar_trigger.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

using Tokens = std::vector<GrammarTrigger::Token>;

GrammarTrigger trigger(const GrammarTriggerRules& rules) {
  auto made = GrammarTrigger::make(rules);
  EXPECT_TRUE(made.ok());
  return std::move(*made);
}

// Returns the tokens that the grammar must accept, or none if the trigger is still awaited. Tokens are
// numbered in order.
Tokens add(GrammarTrigger& trigger, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    Tokens held = trigger.add(static_cast<std::int32_t>(i), texts[i]);
    if (!trigger.is_awaited()) return held;
    EXPECT_TRUE(held.empty());
  }
  return {};
}

// Adds a megabyte of free text, as in a completion that calls no tool.
void add_long_text(GrammarTrigger& trigger) {
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(trigger.add(7, " to < | > t").empty());
}

TEST(GrammarTrigger, IsNotAwaitedWithoutRules) {
  EXPECT_FALSE(trigger({}).is_awaited());
}

TEST(GrammarTrigger, AWordMayBeginWithinATokenAndEndInAnother) {
  GrammarTrigger awaited = trigger({.words = {"[call]", "<tool_call>"}});
  EXPECT_EQ(add(awaited, {"Let me see <too", "l_c", "ol <tool_", "call", ">{"}),
            (Tokens{{2, "<tool_"}, {3, "call"}, {4, ">{"}}));
}

TEST(GrammarTrigger, TheWordThatBeginsFirstCounts) {
  GrammarTrigger awaited = trigger({.words = {"b", "abc"}});
  EXPECT_EQ(add(awaited, {"xabc"}), (Tokens{{0, "abc"}}));
}

TEST(GrammarTrigger, HoldsFromATokenOn) {
  GrammarTrigger awaited = trigger({.tokens = {3}});
  EXPECT_EQ(add(awaited, {"a", "b", "c", "d"}), (Tokens{{3, "d"}}));
}

TEST(GrammarTrigger, AWordIsFoundAfterALongText) {
  GrammarTrigger awaited = trigger({.words = {"<tool_call>"}, .tokens = {9}});
  add_long_text(awaited);
  EXPECT_EQ(add(awaited, {"<tool", "_call>"}), (Tokens{{0, "<tool"}, {1, "_call>"}}));
}

TEST(GrammarTrigger, APatternHoldsFromItsFirstGroupOn) {
  GrammarTrigger awaited = trigger({.patterns = {"<start>assistant(\\s+to)"}});
  EXPECT_EQ(add(awaited, {"<start>", "assistant", "  t", "o="}), (Tokens{{2, "  t"}, {3, "o="}}));
}

// Searching all of the text would be slow, and the standard library's search uses stack for each letter.
TEST(GrammarTrigger, APatternIsFoundAfterALongText) {
  GrammarTrigger awaited = trigger({.patterns = {"(?:^|<start>)( to=(?!self)[^]*?<message>)"}});
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(awaited.add(7, " to=something else").empty());
  EXPECT_EQ(add(awaited, {"<start>", " to=", "me<message>"}), (Tokens{{1, " to="}, {2, "me<message>"}}));
}

TEST(GrammarTrigger, WhatMayStandAtTheBeginningAloneIsNotFoundLater) {
  const GrammarTriggerRules rules{.patterns = {"^\\s+to$", "^ to"}};
  GrammarTrigger first = trigger(rules), late = trigger(rules);
  EXPECT_EQ(add(first, {" ", "to"}), (Tokens{{0, " "}, {1, "to"}}));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(late.add(7, "to to ").empty());
  EXPECT_TRUE(add(late, {" ", "to"}).empty());
  EXPECT_TRUE(late.is_awaited());
}

TEST(GrammarTrigger, RefusesWhatIsNoPattern) {
  EXPECT_FALSE(GrammarTrigger::make({.patterns = {"(a"}}).ok());
}

TEST(GrammarTrigger, IsNotAwaitedWithinAThought) {
  const GrammarTriggerRules rules{
      .words = {"<call>"}, .tokens = {9}, .thought = {"<think>", {"</think>"}, false}};
  GrammarTrigger optional = trigger(rules);
  EXPECT_EQ(add(optional, {"\n<th", "ink> a <call>", " b", " </thi", "nk> c", " <ca", "ll>{"}),
            (Tokens{{5, "<ca"}, {6, "ll>{"}}));
  GrammarTrigger by_token = trigger(rules);
  EXPECT_TRUE(by_token.add(1, "<think>").empty());
  EXPECT_TRUE(by_token.add(9, "<call>").empty());
  add_long_text(by_token);
  EXPECT_TRUE(by_token.add(2, "</think>").empty());
  EXPECT_EQ(by_token.add(9, "<call>"), (Tokens{{9, "<call>"}}));
  GrammarTrigger none = trigger(rules);
  EXPECT_EQ(add(none, {"<thin air>", " <think> ", "<call>"}), (Tokens{{2, "<call>"}}));
  GrammarTriggerRules begun_rules = rules;
  begun_rules.thought.has_begun = true;
  begun_rules.thought.ends.push_back("<call>");  // this text ends a thought in some templates
  GrammarTrigger begun = trigger(begun_rules);
  EXPECT_EQ(add(begun, {"a", " b <call>", "{"}), (Tokens{{1, "<call>"}}));
}

}  // namespace
}  // namespace kvant
