#include "eval/limits/records.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvant {
namespace {

TEST(Records, AreJsonThatTheirSentencesHoldAndTheirCuesBegin) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const Record& record : draw_records(seed)) {
      ASSERT_TRUE(nlohmann::json::accept(record.json)) << record.json;
      EXPECT_NE(record.sentence.find(record.json), std::string::npos);
      EXPECT_TRUE(record.json.starts_with(record.cue)) << record.json;
      EXPECT_EQ(json_object_end(record.json), record.json.size());
    }
  }
}

TEST(Records, AreDrawnBySeed) {
  EXPECT_EQ(draw_records(7)[0].json, draw_records(7)[0].json);
  EXPECT_NE(draw_records(7)[0].json, draw_records(8)[0].json);
  EXPECT_NE(draw_records(7)[1].json, draw_records(8)[1].json);
}

// The expected end is the length of the shortest prefix that nlohmann's parser accepts.
TEST(Records, EndWhereAParserSaysSo) {
  for (const std::string text :
       {R"({"a": {"b": [1, {"c": "}"}]}, "d": "\"}"} and more})", R"({} {})", R"({"x": "\\"}"})"}) {
    std::size_t expected = 0;
    while (!nlohmann::json::accept(text.substr(0, expected))) ++expected;
    EXPECT_EQ(json_object_end(text), expected) << text;
  }
  for (const std::string text : {"", "[1]", " {}", R"({"a": "}")", R"({"a": 1)"})
    EXPECT_EQ(json_object_end(text), std::string::npos) << text;
}

}  // namespace
}  // namespace kvant
