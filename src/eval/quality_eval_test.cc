#include "eval/quality_eval.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/engine_source.h"
#include "eval/llama_reference.h"
#include "eval/scripted_source.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

struct ScriptedRun {
  ScriptedSource reference{"base", 1};
  std::vector<std::unique_ptr<LogitSource>> candidates;
  std::int64_t advanced = 0;

  Result<QualityResult> operator()(const EvalText& text, const QualityOptions& options) {
    return evaluate_quality(text, kScriptedVocab, reference, candidates, options,
                            [&](std::int64_t n) { advanced += n; });
  }
};

// Returns a text in which token i is i mod kScriptedVocab. A ScriptedSource with shift 1 therefore always
// predicts the true token.
EvalText counting_text(int n, std::int32_t bos = -1) {
  EvalText text{{}, bos};
  for (int i = 0; i < n; ++i) text.tokens.push_back(i % kScriptedVocab);
  return text;
}

TEST(QualityEval, ScoresTheSecondHalfOfEachContext) {
  ScriptedRun run;
  run.candidates.push_back(std::make_unique<ScriptedSource>("wrong", 2));
  const auto result = run(counting_text(25), {.context = 10, .chunks = 0, .step_tokens = 3, .n_threads = 1});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chunks, 2);
  EXPECT_EQ(run.reference.calls, "begin prompt5 decode3 decode2 begin prompt5 decode3 decode2 ");
  EXPECT_EQ(run.advanced, 2 * 2 * 10);
  const MetricsSummary& right = result->rows[0].metrics;
  const MetricsSummary& wrong = result->rows[1].metrics;
  // The scores belong to positions 5 .. 8 of each chunk, which predict tokens 6 .. 9.
  EXPECT_EQ(right.positions, 2 * 4);
  const double likely = std::exp(1.0) / (std::exp(1.0) + kScriptedVocab - 1),
               unlikely = 1 / (std::exp(1.0) + kScriptedVocab - 1);
  EXPECT_NEAR(right.ppl, 1 / likely, 1e-5);
  EXPECT_NEAR(wrong.ppl, 1 / unlikely, 1e-5);
  EXPECT_EQ(right.kld_max, 0);
  // The divergence is (p - q) log(p / q), and log(p / q) = 1.
  EXPECT_NEAR(wrong.kld_mean, likely - unlikely, 1e-6);
  EXPECT_EQ(right.top1, 1);
  EXPECT_EQ(wrong.top1, 0);
  EXPECT_EQ(result->rows[1].bits.all, 5);
}

TEST(QualityEval, PutsBosAtTheStartOfEachChunk) {
  ScriptedRun run;
  ASSERT_TRUE(
      run(counting_text(8, /*bos=*/4), {.context = 4, .chunks = 2, .step_tokens = 4, .n_threads = 1}).ok());
  EXPECT_EQ(run.reference.first_tokens, (std::vector<std::int32_t>{4, 2, 4, 1}));
}

TEST(QualityEval, RefusesATextShorterThanAChunk) {
  ScriptedRun run;
  EXPECT_FALSE(run(counting_text(9), {.context = 10}).ok());
}

// kvant's engine and llama.cpp run one tiny model with F32 weights. The logits must agree, and a low-bit
// cache must have a larger divergence and fewer bits.
TEST(QualityEval, TheEngineAgreesWithLlamaCppAndLowBitsShow) {
  TinyModel shape;
  shape.matrix_type = GGML_TYPE_Q8_0;
  const auto file = write_tiny_model(shape);
  const auto engine = Engine::load(file->path(), {1, WeightMode::f32, 0});
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const auto backend = make_reference_backend();
  const auto llama = LlamaReference::load_f32(file->path());
  ASSERT_TRUE(llama.ok()) << llama.error().message;
  constexpr int kContext = 384, kSteps = 100;
  const auto reference = (*llama)->source("llama.cpp:f16", kContext, kSteps, 1);
  ASSERT_TRUE(reference.ok()) << reference.error().message;
  std::vector<std::unique_ptr<LogitSource>> candidates;
  for (const char* recipe : {"f16", "tok4g32s", "tok2g32"}) {
    const auto plan = resolve(*parse_recipe(recipe), (*engine)->geometry(), nullptr);
    ASSERT_TRUE(plan.ok());
    candidates.push_back(make_engine_source(recipe, **engine, *backend, *plan, kSteps));
  }
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
  const auto tokens = tokenize_for_eval((*engine)->tokenizer(), text);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->bos, 1);
  const auto result = evaluate_quality(
      *tokens, (*engine)->n_vocab(), **reference, candidates,
      {.context = kContext, .chunks = 2, .step_tokens = kSteps, .n_threads = 1}, [](std::int64_t) {});
  ASSERT_TRUE(result.ok()) << result.error().message;
  const auto& rows = result->rows;
  EXPECT_LT(rows[1].metrics.kld_mean, 1e-5);
  EXPECT_GT(rows[2].metrics.kld_mean, rows[1].metrics.kld_mean);
  EXPECT_GT(rows[3].metrics.kld_mean, 2 * rows[2].metrics.kld_mean);
  EXPECT_DOUBLE_EQ(rows[2].bits.sealed, 4.5);
  EXPECT_DOUBLE_EQ(rows[3].bits.sealed, 3.0);
  // Two pages are sealed at 257 .. 383 tokens, and three pages at 384. All other tokens are BF16 in steps of
  // 16.
  double sum = 4.5;
  for (int n = 257; n < 384; ++n) {
    const int unsealed = (n - 256 + 15) / 16 * 16;
    sum += (256 * 4.5 + unsealed * 16) / n;
  }
  EXPECT_NEAR(rows[2].bits.all, sum / 128, 1e-9);
  EXPECT_EQ(rows[2].constants.bytes, 0);
}

}  // namespace
}  // namespace kvant
