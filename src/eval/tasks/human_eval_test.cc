#include "eval/tasks/human_eval.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "eval/tasks/sandbox_fixture.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// This is problem 53 of the data.
constexpr const char* kAdd =
    R"({"task_id": "HumanEval/53", "prompt": "\n\ndef add(x: int, y: int):\n    \"\"\"Add two numbers x and y\n    >>> add(2, 3)\n    5\n    >>> add(5, 7)\n    12\n    \"\"\"\n", "entry_point": "add", "canonical_solution": "    return x + y\n", "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    import random\n\n    assert candidate(0, 1) == 1\n    assert candidate(1, 0) == 1\n    assert candidate(2, 3) == 5\n    assert candidate(5, 7) == 12\n    assert candidate(7, 5) == 12\n\n    for i in range(100):\n        x, y = random.randint(0, 1000), random.randint(0, 1000)\n        assert candidate(x, y) == x + y\n\n"})";

class HumanEval : public SandboxFixture {};

bool passes(const nlohmann::ordered_json& record, const std::string& completion) {
  const auto passes = passes_tests(record, completion);
  EXPECT_TRUE(passes.ok()) << (passes.ok() ? "" : passes.error().message);
  return passes.ok() && *passes;
}

TEST_F(HumanEval, RunsProgramsWithTheirTests) {
  const auto record = parse_json(kAdd).value();
  EXPECT_TRUE(passes(record, "def add(x: int, y: int):\n    return x + y\n\nprint(add(1, 2))"));
  // The program also passes if the completion prints without a line end.
  EXPECT_TRUE(passes(record, "def add(x, y):\n    print('.', end='')\n    return x + y"));
  EXPECT_FALSE(passes(record, "def add(x, y):\n    return x - y"));
  EXPECT_FALSE(passes(record, "def add(x, y):\n    return x +"));
  EXPECT_FALSE(passes(record, "def other(x, y):\n    return x + y"));
  EXPECT_FALSE(passes(record, ""));
  EXPECT_FALSE(passes(record, std::string(kMostProgramBytes, '#')));
  // A program that ends before its tests has not passed.
  EXPECT_FALSE(passes(record, "import os\nx = os._exit(0)"));
  EXPECT_FALSE(passes(record, "def add(x, y):\n    import os\n    os._exit(0)"));
}

TEST_F(HumanEval, LeavesOutTheModelsOwnTests) {
  const auto record = parse_json(kAdd).value();
  const std::string right = "import math\nZERO = 0\n\ndef add(x, y):\n    return math.floor(x + y + ZERO)\n";
  EXPECT_TRUE(passes(record, right + "\nassert add(1, 1) == 3\nprint(add('a', 1))"));
  EXPECT_TRUE(passes(record, right + "\nresult = add('a', 1)\n"));
  EXPECT_TRUE(passes(record, right + "\nif __name__ == '__main__':\n    import sys\n    sys.exit(1)\n"));
  // Quotes, escapes and other scripts survive.
  EXPECT_TRUE(passes(record, R"(def add(x, y):
    return {'\n\t"äö🐦': x + y}[chr(10) + chr(9) + chr(34) + chr(228) + chr(246) + chr(0x1F426)])"));
  EXPECT_FALSE(passes(record, right + "\nThat is all."));
}

TEST_F(HumanEval, OpensACodeBlockForTheCompletion) {
  const auto file = write_tiny_model({});
  const auto tokenizer = Tokenizer::load(file->path()).value();
  const auto chat_template = ChatTemplate::open(*tokenizer, "").value();
  const auto task = make_human_eval(*chat_template, kAdd, /*most=*/0, /*max_tokens=*/50);
  ASSERT_TRUE(task.ok()) << task.error().message;
  ASSERT_EQ(task->problems.size(), 1U);
  const TaskProblem& problem = task->problems.front();
  EXPECT_EQ(problem.id, "HumanEval/53");
  EXPECT_EQ(problem.prompt.options.stops, std::vector<std::string>{"\n```"});
  std::string text;
  for (const std::int32_t token : problem.prompt.tokens) text += tokenizer->piece(token);
  EXPECT_NE(text.find("Add two numbers x and y"), std::string::npos);
  EXPECT_TRUE(text.ends_with("corresponding tests:\n```python\n")) << text;
  EXPECT_TRUE(problem.judge("def add(x, y):\n    return y + x").is_right);
  const auto broken = make_human_eval(*chat_template, R"({"task_id": "1", "prompt": "x"})", 0, 50);
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("entry_point"), std::string::npos);
}

}  // namespace
}  // namespace kvant
