#include "eval/greedy/greedy_eval.h"

#include <gtest/gtest.h>

#include "eval/greedy/greedy_report.h"
#include "eval/greedy/prompts.h"
#include "eval/scripted_source.h"

namespace kvant {
namespace {

// Counts like the reference's ScriptedSource, but predicts 0 where ScriptedSource predicts 3.
class StumblesAtThree : public ScriptedSource {
 public:
  StumblesAtThree() : ScriptedSource("stumbles", 1) {}
  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    KVANT_RETURN_IF_ERROR(ScriptedSource::step(tokens, is_prompt, logits));
    for (int r = 0; r < logits.rows; ++r) {
      if (logits.row(r)[3] == 1.0F) logits.row(r)[0] = 2.0F;
    }
    return {};
  }
};

Result<GreedyResult> generations(const std::vector<std::vector<std::int32_t>>& prompts, int maximum) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(std::make_unique<ScriptedSource>("counts", 1));
  sources.push_back(std::make_unique<ScriptedSource>("skips", 2));
  sources.push_back(std::make_unique<StumblesAtThree>());
  const GreedyOptions options{maximum, [](std::int32_t token) { return token == 4; }};
  return evaluate_greedy(prompts, kScriptedVocab, sources, options, [](int) {});
}

TEST(GreedyEval, CountsTokensBeforeTheFirstDifference) {
  // The reference generates 1 2 3 for the first prompt, 4 (which ends a generation) for the second, and 1 2 3
  // for the third.
  const auto result = generations({{4, 0}, {3}, {0}}, 3);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->lengths, (std::vector<int>{3, 1, 3}));
  EXPECT_EQ(result->rows[0].agreed, result->lengths);
  EXPECT_EQ(result->rows[1].agreed, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(result->rows[2].agreed, (std::vector<int>{2, 1, 2}));
  const GreedyFigures figures = summarize(*result, result->rows[2]);
  EXPECT_NEAR(figures.agreed_mean, 5.0 / 3, 1e-12);
  EXPECT_EQ(figures.agreed_median, 2);
  EXPECT_NEAR(figures.identical, 1.0 / 3, 1e-12);
  const auto json = greedy_to_json(*result, "model.gguf");
  EXPECT_EQ(json["schema"], "kvant.greedy/2");
  EXPECT_EQ(json["results"][2]["agreed"], result->rows[2].agreed);
}

TEST(Prompts, AreLinesOrJson) {
  const auto prompts = parse_prompts("What is 2 + 2?\n\n{\"question\": \"a \\\"b\\\"\", \"answer\": 1}\r\n");
  ASSERT_TRUE(prompts.ok()) << prompts.error().message;
  EXPECT_EQ(*prompts, (std::vector<std::string>{"What is 2 + 2?", "a \"b\""}));
}

TEST(Prompts, SayWhichLineIsNone) {
  const auto broken = parse_prompts("fine\n{\"text\": 1}\n");
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("line 2"), std::string::npos);
  EXPECT_FALSE(parse_prompts(" \n\n").ok());
}

}  // namespace
}  // namespace kvant
