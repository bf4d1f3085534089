#include "eval/tasks/bfcl.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json_reader.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// These are two problems of BFCL v4.
constexpr const char* kQuestions =
    R"({"id": "parallel_4", "question": [[{"role": "user", "content": "Calculate the body mass index for a person who is 6 feet tall and weighs 80 kg, also for a person who is 5.6 feet and weighs 60 kg."}]], "function": [{"name": "calculate_bmi", "description": "Calculate body mass index for a person based on their weight and height.", "parameters": {"type": "dict", "properties": {"height": {"type": "float", "description": "The height of the person in feet."}, "weight": {"type": "integer", "description": "The weight of the person in kilograms."}}, "required": ["height", "weight"]}}]}
{"id": "parallel_0", "question": [[{"role": "user", "content": "Play songs from the artists Taylor Swift and Maroon 5, with a play time of 20 minutes and 15 minutes respectively, on Spotify."}]], "function": [{"name": "spotify.play", "description": "Play specific tracks from a given artist for a specific time duration.", "parameters": {"type": "dict", "properties": {"artist": {"type": "string", "description": "The artist whose songs you want to play."}, "duration": {"type": "integer", "description": "The duration for which the songs should be played, in minutes."}}, "required": ["artist", "duration"]}}]}
)";
constexpr const char* kAnswers =
    R"({"id": "parallel_0", "ground_truth": [{"spotify.play": {"artist": ["Taylor Swift"], "duration": [20]}}, {"spotify.play": {"artist": ["Maroon 5"], "duration": [15]}}]}
{"id": "parallel_4", "ground_truth": [{"calculate_bmi": {"height": [6.0], "weight": [80]}}, {"calculate_bmi": {"height": [5.6], "weight": [60]}}]}
)";

class Bfcl : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = write_tiny_model({}).release();
    tokenizer_ = Tokenizer::load(file_->path()).value().release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete file_;
  }
  static std::shared_ptr<const ChatTemplate> with_tools() {
    return ChatTemplate::open(*tokenizer_, KVANT_TEST_TEMPLATE).value();
  }
  static std::string text_of(const TaskProblem& problem) {
    std::string text;
    for (const std::int32_t token : problem.prompt.tokens) text += tokenizer_->piece(token);
    return text;
  }

  static inline TinyFile* file_ = nullptr;
  static inline Tokenizer* tokenizer_ = nullptr;
};

TEST_F(Bfcl, OffersToolsWithJsonSchemas) {
  const auto functions = parse_json(
      R"([{"name": "a.b", "description": "d", "parameters": {"type": "dict", "properties": {"x": {"type": "float", "description": "X."}, "y": {"type": "tuple", "items": {"type": "float"}}, "z": {"type": "dict", "properties": {"q": {"type": "any"}}}, "w": {"type": "array", "items": {"type": "dict", "properties": {"r": {"type": "float"}}}}}, "required": ["x"]}}])");
  EXPECT_EQ(
      bfcl_tools(*functions).dump(),
      R"([{"type":"function","function":{"name":"a_b","description":"d","parameters":{"type":"object","properties":{"x":{"type":"number","description":"X. This is a float type value.","format":"float"},"y":{"type":"array","items":{"type":"number"}},"z":{"type":"object","properties":{"q":{"type":"string"}}},"w":{"type":"array","items":{"type":"object","properties":{"r":{"type":"number","format":"float","description":" This is a float type value."}}}}},"required":["x"]}}}])");
}

TEST_F(Bfcl, JudgesCallsInTheTemplatesForm) {
  const auto task = make_bfcl(*with_tools(), kQuestions, kAnswers, {.category = "parallel"});
  ASSERT_TRUE(task.ok()) << task.error().message;
  ASSERT_EQ(task->problems.size(), 2U);
  EXPECT_EQ(task->name, "bfcl-parallel");
  EXPECT_EQ(task->problems[1].id, "parallel_0");
  EXPECT_NE(text_of(task->problems[1]).find("\"spotify_play\""), std::string::npos);
  EXPECT_TRUE(text_of(task->problems[1]).ends_with("<|im_start|>assistant\n"));
  const std::string swift =
      "<tool_call>\n{\"name\": \"spotify_play\", \"arguments\": {\"artist\": \"Taylor Swift\", \"duration\": "
      "20}}\n</tool_call>";
  const std::string maroon =
      "<tool_call>\n{\"name\": \"spotify_play\", \"arguments\": {\"artist\": \"Maroon 5\", \"duration\": "
      "15}}\n"
      "</tool_call>";
  const auto score = [&](const std::string& completion) { return task->problems[1].judge(completion); };
  EXPECT_TRUE(score(swift + "\n" + maroon).is_right);
  EXPECT_TRUE(score(maroon + "\n" + swift).is_right);
  EXPECT_TRUE(score(swift + "\n" + maroon).is_valid);
  // One call is valid, but not right.
  EXPECT_FALSE(score(swift).is_right);
  EXPECT_TRUE(score(swift).is_valid);
  // The parser also finds calls that models write without the template's marks.
  EXPECT_TRUE(
      score("{\"name\": \"spotify_play\", \"arguments\": {\"artist\": \"Maroon 5\", \"duration\": 15}}")
          .is_valid);
  for (const char* completion :
       {"", "I cannot play songs.", "<tool_call>\n{\"name\": \"spotify_play\", \"argum",
        "{\"name\": \"spotify_pause\", \"arguments\": {}}"}) {
    EXPECT_FALSE(score(completion).is_valid) << completion;
    EXPECT_FALSE(score(completion).is_right) << completion;
  }
}

TEST_F(Bfcl, PutsTextBeforeTheQuestion) {
  const std::string text = "One fish. Two fish. Red fish. Blue fish.";
  const auto before = text_of_tokens(*tokenizer_, text, 500);
  ASSERT_TRUE(before.ok());
  EXPECT_NEAR(static_cast<double>(tokenizer_->encode(*before, false, false)->size()), 500, 12);
  EXPECT_NE(before->find("Blue fish."), std::string::npos);
  const auto none = make_bfcl(*with_tools(), kQuestions, kAnswers, {.category = "parallel"});
  const auto deep = make_bfcl(*with_tools(), kQuestions, kAnswers,
                              {.category = "parallel", .before = *before, .depth = 500});
  ASSERT_TRUE(none.ok() && deep.ok());
  const auto more = static_cast<double>(deep->problems[0].prompt.tokens.size()) -
                    static_cast<double>(none->problems[0].prompt.tokens.size());
  // The turn around the text has some 150 tokens, because a tiny model's tokens are bytes.
  EXPECT_GT(more, 480);
  EXPECT_LT(more, 750);
  const std::string prompt = text_of(deep->problems[0]);
  EXPECT_LT(prompt.find("calculate_bmi"), prompt.find("One fish."));
  EXPECT_LT(prompt.find("One fish."), prompt.find("Calculate the body mass index for a person who"));
}

TEST_F(Bfcl, SaysWhatIsWrongWithTheData) {
  const auto message = [&](const std::string& questions, const std::string& answers, const char* file) {
    const auto task = make_bfcl(*ChatTemplate::open(*tokenizer_, file).value(), questions, answers,
                                {.category = "parallel"});
    return task.ok() ? "" : task.error().message;
  };
  EXPECT_NE(message(kQuestions, kAnswers, "").find("tools"), std::string::npos);
  EXPECT_NE(message(kQuestions, R"({"id": "parallel_4"})", KVANT_TEST_TEMPLATE)
                .find("lack the problem 'parallel_4'"),
            std::string::npos);
  EXPECT_NE(message(R"({"id": "parallel_4"})", kAnswers, KVANT_TEST_TEMPLATE).find("problem 0"),
            std::string::npos);
}

}  // namespace
}  // namespace kvant
