#include "chat/thought_tags.h"

#include <gtest/gtest.h>

namespace kvant::thought_tags_test {
namespace {

struct Read {
  std::string thought, text;
  bool operator==(const Read&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Read& read) {
  return out << '(' << read.thought << ")(" << read.text << ')';
}

Read read(const std::string& text, std::size_t step) {
  ThoughtTags tags;
  Read all;
  const auto take = [&](const ThoughtTags::Split& split) {
    all.thought += split.thought;
    all.text += split.text;
  };
  for (std::size_t i = 0; i < text.size(); i += step) take(tags.add(text.substr(i, step)));
  take(tags.finish());
  return all;
}

TEST(ThoughtTags, SplitAThoughtFromTheTextAfterIt) {
  const std::pair<std::string, Read> cases[] = {
      {"<think>a < b</think>\n\nc", {"a < b", "c"}},
      {"\n<think>a</think>c</think>", {"a", "c</think>"}},
      {"<think>\n\n</think>\n\nc <think>d</think>", {"\n\n", "c <think>d</think>"}},
      {"<think>a </thi", {"a </thi", ""}},
      {"a <think>b</think>", {"", "a <think>b</think>"}},
      {" \n<thin air", {"", " \n<thin air"}},
      {"<think", {"", "<think"}},
      {"", {"", ""}},
  };
  for (const auto& [text, wanted] : cases) {
    for (const std::size_t step : {1, 3, 100}) EXPECT_EQ(read(text, step), wanted) << text;
  }
}

TEST(ThoughtTags, AreHeldBackNoLongerThanTheyMayBeTags) {
  ThoughtTags tags;
  EXPECT_EQ(tags.add("<think>ab").thought, "ab");
  EXPECT_EQ(tags.add("c <").thought, "c ");
  EXPECT_EQ(tags.add("d").thought, "<d");
}

TEST(ThoughtEdges, HaveNoSpace) {
  ThoughtEdges edges;
  EXPECT_EQ(edges.text(" \na"), " \na");  // there was no thought before this text
  EXPECT_EQ(edges.thought("\n"), "");
  EXPECT_EQ(edges.thought(" a\n"), "a");
  EXPECT_EQ(edges.thought("\nb"), "\n\nb");
  EXPECT_EQ(edges.thought("\n"), "");
  EXPECT_EQ(edges.text("\n"), "");
  EXPECT_EQ(edges.text("\nc\n"), "c\n");
  EXPECT_EQ(edges.text("\n d"), "\n d");
}

}  // namespace
}  // namespace kvant::thought_tags_test
