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

// Returns the texts that TextStream shows. In `pieces`, brackets mark hidden pieces.
Texts shown_with_hidden(const Texts& pieces, const Texts& stops, std::string& stop) {
  TextStream stream(stops);
  Texts texts;
  std::size_t n_bytes = 0;
  for (const std::string& piece : pieces) {
    texts.push_back(stream.add(piece, piece.starts_with('[')));
    n_bytes += piece.size();
  }
  texts.push_back(stream.finish());
  stop = stream.stop();
  EXPECT_TRUE(!stop.empty() || stream.shown() == n_bytes);
  return texts;
}

TEST(TextStream, LeavesHiddenBytesOut) {
  std::string stop;
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "[y]", "b"}, {}, stop), (Texts{"a", "", "", "b", ""}));
  EXPECT_EQ(shown_with_hidden({"a\xc3", "[x]"}, {}, stop), (Texts{"a", "\xc3", ""}));
  EXPECT_EQ(shown_with_hidden({"a\xe2", "[", "\x82"}, {}, stop), (Texts{"a", "", "", "\xe2\x82"}));
}

TEST(TextStream, EndsAtAStopTextThatHasAllHiddenBytesOrNone) {
  std::string stop;
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "b"}, {"[x]"}, stop), (Texts{"a", "", "", ""}));
  EXPECT_EQ(stop, "[x]");
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "us", "er", "b"}, {"[x]user"}, stop),
            (Texts{"a", "", "", "", "", ""}));
  EXPECT_EQ(stop, "[x]user");
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "us", "b"}, {"[x]user"}, stop), (Texts{"a", "", "", "usb", ""}));
  EXPECT_EQ(stop, "");
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "b"}, {"x"}, stop), (Texts{"a", "", "b", ""}));
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "b"}, {"]b"}, stop), (Texts{"a", "", "b", ""}));
  EXPECT_EQ(stop, "");
  EXPECT_EQ(shown_with_hidden({"a", "[x]", "]b"}, {"]b"}, stop), (Texts{"a", "", "", ""}));
  EXPECT_EQ(stop, "]b");
}

}  // namespace
}  // namespace kvant
