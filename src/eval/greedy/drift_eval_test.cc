#include "eval/greedy/drift_eval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/greedy/drift_report.h"
#include "eval/scripted_source.h"

namespace kvant {
namespace {

// Predicts like ScriptedSource, but after token 3 prefers token 0.
class PrefersZeroAfterThree : public ScriptedSource {
 public:
  PrefersZeroAfterThree() : ScriptedSource("prefers zero", 1) {}
  Status step(std::span<const std::int32_t> tokens, bool is_prompt, MatrixView<float> logits) override {
    KVANT_RETURN_IF_ERROR(ScriptedSource::step(tokens, is_prompt, logits));
    if (tokens.back() == 3) logits.row(0)[0] = 2.0F;
    return {};
  }
};

// Returns the KL divergence between the reference's logits, 0 0 0 0 1, and the other source's, 2 0 0 0 1.
double divergence_after_three() {
  const double sum = 4 + std::exp(1.0), other = 3 + std::exp(1.0) + std::exp(2.0);
  return std::log(other / sum) - 2 / sum;
}

DriftResult drift_of(int generated, int block, std::vector<std::vector<std::int32_t>> prompts,
                     std::vector<std::string>* calls = nullptr) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(std::make_unique<ScriptedSource>("counts", 1));
  sources.push_back(std::make_unique<PrefersZeroAfterThree>());
  const DriftOptions options{generated, block, 1, 1, [](std::int32_t token) { return token == 4; }};
  const auto result = evaluate_drift(prompts, kScriptedVocab, sources, options, [](int) {});
  EXPECT_TRUE(result.ok());
  if (calls != nullptr) {
    for (const auto& source : sources) calls->push_back(dynamic_cast<ScriptedSource&>(*source).calls);
  }
  return *result;
}

TEST(DriftEval, ComparesPredictionsByPosition) {
  // Token 4 would end the completion. After token 3, all other tokens are equally likely, so the first one
  // follows: the reference generates 1 2 3 0 1 2 3 0.
  const DriftResult result = drift_of(8, 4, {{4, 0}});
  EXPECT_EQ(result.ends, (std::vector<int>{3}));
  ASSERT_EQ(result.rows.size(), 2U);
  ASSERT_EQ(result.rows[1].blocks.size(), 2U);
  EXPECT_EQ(result.rows[0].all.kld_mean, 0);
  for (const DriftBlock& block : result.rows[1].blocks) {
    EXPECT_NEAR(block.kld, divergence_after_three() / 4, 1e-6);
    EXPECT_EQ(block.top1, 0.75);
  }
}

TEST(DriftEval, ReadsCompletionsTokenByToken) {
  std::vector<std::string> calls;
  (void)drift_of(3, 2, {{4, 0}, {2}}, &calls);
  for (const std::string& of_source : calls)
    EXPECT_EQ(of_source, "begin prompt2 decode1 decode1 begin prompt1 decode1 decode1 ");
}

// Runs several texts side by side, each with the predictions of Source.
template <class Source>
class SideBySide : public Source {
 public:
  using Source::Source;
  Status begin_texts(int n_texts) override {
    this->calls += "texts" + std::to_string(n_texts) + " ";
    return {};
  }
  Status step_texts(std::span<const std::span<const std::int32_t>> texts, bool is_prompt,
                    MatrixView<float> logits) override {
    for (std::size_t i = 0; i < texts.size(); ++i)
      KVANT_RETURN_IF_ERROR(Source::step(texts[i], is_prompt, logits.slice(static_cast<int>(i), 1)));
    return {};
  }
};

TEST(DriftEval, CompletesPromptsSideBySide) {
  const std::vector<std::vector<std::int32_t>> prompts{{4, 0}, {2}, {1, 1, 3}};
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(std::make_unique<SideBySide<ScriptedSource>>("counts", 1));
  sources.push_back(std::make_unique<SideBySide<PrefersZeroAfterThree>>());
  const DriftOptions options{8, 4, 2, 1, [](std::int32_t token) { return token == 4; }};
  const auto together = evaluate_drift(prompts, kScriptedVocab, sources, options, [](int) {});
  ASSERT_TRUE(together.ok());
  EXPECT_EQ(drift_to_json(*together, "").dump(), drift_to_json(drift_of(8, 4, prompts), "").dump());
  EXPECT_EQ(dynamic_cast<ScriptedSource&>(*sources[0]).calls.substr(0, 30), "texts2 prompt2 prompt1 decode1");
}

TEST(DriftEval, AveragesBlocksOverPrompts) {
  // The first prompt's completion is 1 2 3, and the second prompt's is 3 0 1: the sources differ at the
  // second prompt's position 1, and nowhere else.
  const DriftResult result = drift_of(3, 2, {{0}, {2}});
  ASSERT_EQ(result.rows[1].blocks.size(), 2U);
  EXPECT_NEAR(result.rows[1].blocks[0].kld, divergence_after_three() / 4, 1e-6);
  EXPECT_EQ(result.rows[1].blocks[0].top1, 0.75);
  EXPECT_EQ(result.rows[1].blocks[1].first, 2);
  EXPECT_EQ(result.rows[1].blocks[1].count, 1);
  EXPECT_EQ(result.rows[1].blocks[1].kld, 0);
  EXPECT_EQ(result.ends, (std::vector<int>{3, 1}));
  const auto json = drift_to_json(result, "model.gguf");
  EXPECT_EQ(json["schema"], "kvant.drift/1");
  EXPECT_EQ(json["results"][1]["blocks"][1]["first"], 2);
  EXPECT_NE(drift_table(result).find("0-1"), std::string::npos);
}

}  // namespace
}  // namespace kvant
