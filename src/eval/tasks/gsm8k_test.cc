#include "eval/tasks/gsm8k.h"

#include <gtest/gtest.h>

#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// This is the first problem of the test data.
constexpr const char* kDucks =
    R"({"question": "Janet\u2019s ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends every day with four. She sells the remainder at the farmers' market daily for $2 per fresh duck egg. How much in dollars does she make every day at the farmers' market?", "answer": "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\nShe makes 9 * 2 = $<<9*2=18>>18 every day at the farmer\u2019s market.\n#### 18"})";

TEST(Gsm8k, FindsTheNumberOfACompletion) {
  const struct {
    const char* completion;
    double number;
  } kCases[] = {
      {"She makes 9 * 2 = 18. The answer is \\boxed{18}.", 18},
      {"\\boxed{3} eggs remain, so she makes \\boxed{\\$1{,}018.50} in 30 days", 1018.5},
      {"The answer is \\boxed{18 \\text{ dollars in } 2 \\text{ days}}.", 18},
      {"\\boxed{\\frac{n}{m}} is unknown, but 7 is not", 7},
      {"\\boxed{-5}", -5},
      {"\\boxed{x = 70,000}", 70000},
      {"\\boxed{2 \\times 9 = 18}", 18},
      {"\\boxed{2 \\times 9 = 18 \\text{ dollars in 1 day}}", 18},
      {"\\boxed{18 = x}", 18},
      {"#### 2 * 9 = $18", 18},
      {"#### 18 (= 9 * 2)", 18},
      {"#### 18 = 9 * 2", 18},
      {"\\boxed{18 = 9 \\times 2}", 18},
      {"\\boxed{18 = 20 - 2}", 18},
      {"\\boxed{20 - 25 = -5}", -5},
      {"####\n18\n\nCheck: 9 eggs for 2 dollars", 18},
      {"#### Final answer\n18 dollars, 2 each", 18},
      {"#### 18\nHere 2 + 1 = 3.", 18},
      {"18\n#### 1,234\n", 1234},
      {"#### -$3\nThat was problem 7.", -3},
      {"So the total is $2,125.", 2125},
      {"It takes 20-5 days, which is 15 days.", 15},
      {"The share is .5", 0.5},
      {"The numbers are 1, 2, 3", 3},
      {"\\boxed{12 is cut off after 34", 34},
  };
  for (const auto& c : kCases) EXPECT_EQ(final_number(c.completion), c.number) << c.completion;
  EXPECT_FALSE(final_number("I do not know.").has_value());
}

TEST(Gsm8k, JudgesCompletions) {
  const auto file = write_tiny_model({});
  const auto tokenizer = Tokenizer::load(file->path()).value();
  const auto chat_template = ChatTemplate::open(*tokenizer, "").value();
  const std::string two = std::string(kDucks) + "\n\n" + kDucks + "\n";
  const auto task = make_gsm8k(*chat_template, two, /*most=*/0, /*max_tokens=*/30);
  ASSERT_TRUE(task.ok()) << task.error().message;
  ASSERT_EQ(task->problems.size(), 2U);
  EXPECT_EQ(make_gsm8k(*chat_template, two, /*most=*/1, 30)->problems.size(), 1U);
  const TaskProblem& problem = task->problems[1];
  EXPECT_EQ(problem.prompt.options.max_tokens, 30);
  EXPECT_TRUE(problem.judge("The answer is \\boxed{18.00}.").is_right);
  EXPECT_FALSE(problem.judge("The answer is \\boxed{9}.").is_right);
  EXPECT_FALSE(problem.judge("").is_right);
  std::string text;
  for (const std::int32_t token : problem.prompt.tokens) text += tokenizer->piece(token);
  EXPECT_NE(text.find("farmers' market?\nPlease reason"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("<|im_start|>assistant\n")) << text;
}

TEST(Gsm8k, SaysWhatIsWrongWithTheData) {
  const auto file = write_tiny_model({});
  const auto tokenizer = Tokenizer::load(file->path()).value();
  const auto chat_template = ChatTemplate::open(*tokenizer, "").value();
  const auto message = [&](const std::string& text) {
    const auto task = make_gsm8k(*chat_template, text, 0, 30);
    return task.ok() ? "" : task.error().message;
  };
  EXPECT_NE(message(std::string(kDucks) + "\n{\"question\": \"?\", \"answer\": \"18\"}").find("problem 1"),
            std::string::npos);
  EXPECT_NE(message("\n{").find("line 2"), std::string::npos);
  EXPECT_NE(message("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(message(" \n").find("no problems"), std::string::npos);
}

}  // namespace
}  // namespace kvant
