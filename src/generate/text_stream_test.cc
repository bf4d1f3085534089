#include "generate/text_stream.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

using Texts = std::vector<std::string>;

Texts shown(const Texts& pieces, const Texts& stops = {}) {
  TextStream stream(stops);
  Texts texts;
  for (const std::string& piece : pieces) texts.push_back(stream.add(piece));
  texts.push_back(stream.finish());
  return texts;
}

TEST(TextStream, ShowsWholeCharacters) {
  EXPECT_EQ(shown({"a", "\xc3", "\xa4", "b"}), (Texts{"a", "", "\xc3\xa4", "b", ""}));
  EXPECT_EQ(shown({"\xf0\x9f", "\x98", "\x80!"}), (Texts{"", "", "\xf0\x9f\x98\x80!", ""}));
}

TEST(TextStream, ShowsBytesThatBelongToNoCharacterInTheEnd) {
  EXPECT_EQ(shown({"a\xc3"}), (Texts{"a", "\xc3"}));
  EXPECT_EQ(shown({"\xff", "abc"}), (Texts{"",
                                           "\xff"
                                           "abc",
                                           ""}));
}

TEST(TextStream, EndsBeforeAStopText) {
  EXPECT_EQ(shown({"one END two", "three"}, {"END"}), (Texts{"one ", "", ""}));
  TextStream stream({"END"});
  EXPECT_EQ(stream.add("x END"), "x ");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.stop(), "END");
  EXPECT_EQ(stream.shown(), 2U);
}

TEST(TextStream, HoldsBackWhatMayBecomeAStopText) {
  EXPECT_EQ(shown({"a E", "N", "D b"}, {"END"}), (Texts{"a ", "", "", ""}));
  EXPECT_EQ(shown({"a E", "N", "T b"}, {"END"}), (Texts{"a ", "", "ENT b", ""}));
  EXPECT_EQ(shown({"a EN"}, {"END"}), (Texts{"a ", "EN"}));
  EXPECT_EQ(shown({"aab"}, {"aaab"}), (Texts{"aab", ""}));
  EXPECT_EQ(shown({"aaa", "ab"}, {"aab"}), (Texts{"a", "a", ""}));
}

TEST(TextStream, EndsAtTheFirstOfSeveralStopTexts) {
  EXPECT_EQ(shown({"a;b,c"}, {",", ";"}), (Texts{"a", ""}));
  EXPECT_EQ(shown({"a", "\n", "\nb"}, {"\n\n", "b"}), (Texts{"a", "", "", ""}));
  TextStream stream({",", ";"});
  EXPECT_EQ(stream.stop(), "");
  stream.add("a;b,c");
  EXPECT_EQ(stream.stop(), ";");
}

TEST(TextStream, FindsAStopTextWhoseCharactersComeInParts) {
  EXPECT_EQ(shown({"x\xe2", "\x82", "\xac", "y"}, {"\xe2\x82\xac"}), (Texts{"x", "", "", "", ""}));
}

}  // namespace
}  // namespace kvant
