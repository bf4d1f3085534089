#include "eval/retrieval/retrieval_eval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/engine_source.h"
#include "eval/llama_reference.h"
#include "eval/retrieval/retrieval_report.h"
#include "eval/scripted_source.h"
#include "model/tiny_model.h"

namespace kvant {
namespace {

std::vector<RetrievalDocument> one_document() {
  RetrievalDocument document{10, 0, {0, 1, 2}, {}};
  // The answer {3, 4} continues the count of ScriptedSource.
  document.questions.push_back({"passkey", 0.5, {3, 4}, {0, 1, 2}});
  // The answer {1} does not continue the count.
  document.questions.push_back({"frequent", -1, {1}, {2, 0}});
  return {document};
}

// The source "right" predicts the next number of a count, and the source "wrong" skips a number.
TEST(RetrievalEval, ScoresWhatGreedyDecodingWouldSay) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(std::make_unique<ScriptedSource>("right", 1));
  sources.push_back(std::make_unique<ScriptedSource>("wrong", 2));
  std::int64_t advanced = 0;
  const auto documents = one_document();
  const auto result = evaluate_retrieval(documents, kScriptedVocab, sources, {{10}, 1, 1},
                                         [&](std::int64_t n) { advanced += n; });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(advanced, 2 * (3 + (2 + 2) + (1 + 1)));
  EXPECT_EQ(tokens_to_run(documents) * 2, advanced);
  EXPECT_EQ(static_cast<ScriptedSource&>(*sources[0]).calls,
            "begin prompt3 mark rewind prompt2 decode2 rewind prompt1 decode1 begin ");
  const double likely = 1 - std::log(std::exp(1.0) + kScriptedVocab - 1), unlikely = likely - 1;
  const RetrievalRow &right = result->rows[0], &wrong = result->rows[1];
  EXPECT_TRUE(right.scores[0].exact);
  EXPECT_NEAR(right.scores[0].logp, 3 * likely, 1e-6);
  EXPECT_FALSE(right.scores[1].exact);
  EXPECT_NEAR(right.scores[1].logp, likely + unlikely, 1e-6);
  EXPECT_FALSE(wrong.scores[0].exact);
  EXPECT_NEAR(wrong.scores[0].logp, 3 * unlikely, 1e-6);

  const auto all = summarize(*result, wrong, [](const AskedQuestion&) { return true; });
  EXPECT_EQ(all.questions, 2);
  EXPECT_EQ(all.exact, 0);
  EXPECT_NEAR(all.difference, (3 * (unlikely - likely) + (unlikely - likely)) / 2, 1e-6);
  const auto needles = summarize(*result, right, [](const AskedQuestion& asked) { return asked.depth >= 0; });
  EXPECT_EQ(needles.questions, 1);
  EXPECT_EQ(needles.exact, 1);
}

TEST(RetrievalEval, WritesEachAnswer) {
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(std::make_unique<ScriptedSource>("right", 1));
  const auto result =
      evaluate_retrieval(one_document(), kScriptedVocab, sources, {{10}, 1, 1}, [](std::int64_t) {});
  ASSERT_TRUE(result.ok());
  const auto json = retrieval_to_json(*result, "model.gguf");
  EXPECT_EQ(json["schema"], "kvant.retrieval/1");
  const auto& row = json["results"][0];
  EXPECT_EQ(row["exact"], 0.5);
  EXPECT_EQ(row["answers"].size(), 2U);
  EXPECT_EQ(row["answers"][0]["depth"], 0.5);
  EXPECT_TRUE(row["answers"][1]["depth"].is_null());
  EXPECT_NE(retrieval_table(*result).find("passkey"), std::string::npos);
}

// After a rewind, a source must behave as if it had read only the text before the mark. The text before the
// mark contains sealed pages of kvant. The test also checks llama.cpp's source.
TEST(RetrievalEval, SourcesGoBackToTheirMark) {
  const auto file = write_tiny_model({});
  const auto engine = Engine::load(file->path(), {1, WeightMode::f32, 0}).value();
  const auto backend = make_reference_backend();
  const auto llama = LlamaReference::load_f32(file->path()).value();
  const auto plan = resolve(*parse_recipe("tok4g32s,sink=4"), engine->geometry(), nullptr).value();
  const int n_vocab = engine->n_vocab();
  std::vector<std::unique_ptr<LogitSource>> sources;
  sources.push_back(make_engine_source("tok4g32s", *engine, *backend, plan, 64));
  sources.push_back(llama->source("llama.cpp:f16", 400, 64, 1).value());
  Tokens text, other, question;
  for (int i = 0; i < 200; ++i) text.push_back(3 + i * i % 250);
  for (int i = 0; i < 100; ++i) other.push_back(3 + i * 7 % 250);
  for (int i = 0; i < 60; ++i) question.push_back(3 + i * 11 % 250);
  for (const auto& source : sources) {
    const auto predict = [&](const Tokens& tokens) {
      std::vector<float> logits(n_vocab);
      EXPECT_TRUE(source->step(tokens, /*is_prompt=*/true, {logits.data(), 1, n_vocab}).ok());
      return logits;
    };
    ASSERT_TRUE(source->begin().ok());
    predict(text);
    const auto expected = predict(question);
    ASSERT_TRUE(source->begin().ok());
    predict(text);
    ASSERT_TRUE(source->mark().ok());
    for (int i = 0; i < 2; ++i) {
      predict(other);
      ASSERT_TRUE(source->rewind().ok());
      const auto again = predict(question);
      ASSERT_TRUE(source->rewind().ok());
      for (int j = 0; j < n_vocab; ++j) ASSERT_NEAR(again[j], expected[j], 1e-4) << source->name();
    }
  }
}

}  // namespace
}  // namespace kvant
