#include "base/json_reader.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

std::string repeated(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

std::string refusal(const std::string& text) {
  const auto json = parse_json(text);
  return json.ok() ? "" : json.error().message;
}

TEST(JsonReader, ReadsWhatIsNestedAsDeepAsAllowedAndRefusesMore) {
  EXPECT_TRUE(parse_json(repeated("[", kMaxJsonDepth) + repeated("]", kMaxJsonDepth)).ok());
  EXPECT_TRUE(parse_json(repeated("{\"a\":", kMaxJsonDepth) + "1" + repeated("}", kMaxJsonDepth)).ok());
  for (const char* open : {"[", "{\"a\":"}) {
    EXPECT_NE(refusal(repeated(open, kMaxJsonDepth + 1)).find("64 levels"), std::string::npos) << open;
    EXPECT_NE(refusal(repeated(open, 1000000)).find("64 levels"), std::string::npos) << open;
  }
  EXPECT_TRUE(parse_json("[\"" + repeated("[{", 1000) + "\\\"[\"]").ok()) << "brackets in a string";
}

TEST(JsonReader, RefusesObjectsThatTakeForeverToRead) {
  std::string members;
  for (int i = 0; i < kMaxJsonMembers; ++i)
    members += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":[1,2]";
  EXPECT_TRUE(parse_json("{" + members + "}").ok());
  EXPECT_NE(refusal("{" + members + ",\"x\":1}").find("4096 members"), std::string::npos);
  EXPECT_TRUE(parse_json("[" + repeated("1,", 100000) + "1]").ok());
}

TEST(JsonReader, SaysWhereTheTextStopsBeingJson) {
  EXPECT_EQ(refusal("{\"a\": nul}"), "not valid JSON: byte 10 is unexpected");
  EXPECT_EQ(refusal("{\"a\": 1"), "not valid JSON: it ends too early");
  EXPECT_EQ(refusal(""), "not valid JSON: it ends too early");
  EXPECT_EQ(refusal("1e999"), "not valid JSON: a number is out of range");
  for (const char* wrong : {"]", "}", ",", "[1,]", "[1 2]", "\"a", "\"\xff\"", "{1:2}", "\xef\xbb"})
    EXPECT_NE(refusal(wrong).find("not valid JSON"), std::string::npos) << wrong;
}

TEST(JsonReader, LeavesOutAByteOrderMark) {
  const auto json = parse_json("\xef\xbb\xbf{\"a\": 5}");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(*json, (nlohmann::ordered_json{{"a", 5}}));
}

TEST(JsonReader, GivesMembersOfTheRightTypeOnly) {
  const auto json =
      parse_json(R"({"t": "x", "n": 2.5, "v": [1, 2], "mixed": [1, "2"], "none": null})").value();
  EXPECT_EQ(text_member(json, "t"), "x");
  EXPECT_EQ(number_member(json, "n"), 2.5);
  EXPECT_EQ(numbers_member(json, "v"), (std::vector<double>{1, 2}));
  for (const char* key : {"n", "v", "none", "missing"}) EXPECT_FALSE(text_member(json, key)) << key;
  for (const char* key : {"t", "v", "none", "missing"}) EXPECT_FALSE(number_member(json, key)) << key;
  for (const char* key : {"t", "n", "mixed", "none", "missing"})
    EXPECT_FALSE(numbers_member(json, key)) << key;
  EXPECT_FALSE(text_member(parse_json("[5]").value(), "t"));
}

}  // namespace
}  // namespace kvant
