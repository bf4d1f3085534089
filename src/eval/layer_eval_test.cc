#include "eval/layer_eval.h"

#include <gtest/gtest.h>

#include "eval/layer_report.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant::layer_eval_test {
namespace {

struct Measured {
  std::unique_ptr<TinyFile> file = write_tiny_model({});
  std::unique_ptr<Engine> engine = Engine::load(file->path(), {2, WeightMode::f32, 0}).value();
  std::unique_ptr<AttentionBackend> backend = make_reference_backend();

  LayerCandidate candidate(const std::string& recipe) {
    return {recipe, resolve(*parse_recipe(recipe), engine->geometry(), nullptr).value()};
  }

  Result<LayerResult> operator()(const std::vector<std::string>& recipes, const QualityOptions& options) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + (i * i + i / 7) % 26);
    std::vector<LayerCandidate> candidates;
    for (const std::string& recipe : recipes) candidates.push_back(candidate(recipe));
    return evaluate_layers(*tokenize_for_eval(engine->tokenizer(), text), *engine, *backend,
                           candidate("bf16"), candidates, options, [&](std::int64_t n) { advanced += n; });
  }
  std::int64_t advanced = 0;
};

TEST(LayerEval, MeasuresTheQueriesOfTheSecondHalf) {
  Measured measure;
  const auto result = measure({"bf16", "tok8g32s", "tok4g32s", "tok2g32"}, {.context = 300, .chunks = 2});
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(measure.advanced, 600);
  EXPECT_EQ(result->rows[0].effects.total().difference, 0);
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<double> errors;
    for (const LayerRow& row : result->rows) {
      const OutputError error = row.effects.of_layer(layer);
      EXPECT_EQ(error.values, 2 * 150 * 4 * 64);
      errors.push_back(error.relative());
    }
    EXPECT_GT(errors[1], 0);
    EXPECT_LT(errors[1], 0.02);
    EXPECT_GT(errors[2], 4 * errors[1]);
    EXPECT_GT(errors[3], 2 * errors[2]);
  }
}

// If the whole prompt is one block, its tokens attend to unquantized K and V.
TEST(LayerEval, RunsTheSecondHalfAsAPromptIfAsked) {
  Measured measure;
  const std::vector<std::string> recipes = {"tok2g32,prefill=all", "tok2g32"};
  QualityOptions options{.context = 384, .chunks = 1};
  const auto decoded = measure(recipes, options);
  ASSERT_TRUE(decoded.ok());
  EXPECT_GT(decoded->rows[0].effects.total().difference, 0);
  options.all_prompt = true;
  const auto prompted = measure(recipes, options);
  ASSERT_TRUE(prompted.ok());
  EXPECT_EQ(prompted->rows[0].effects.total().difference, 0);
  EXPECT_GT(prompted->rows[1].effects.total().difference, 0);
}

TEST(LayerEval, ReportsWhatIsSkippedAndWhatIsProtected) {
  Measured measure;
  const auto result = measure({"tok4g32s", "tok4g32s,skip=0.01", "k=ch4g128,v=tok2g128,protect=0.05"},
                              {.context = 512, .chunks = 1});
  ASSERT_TRUE(result.ok()) << result.error().message;
  const auto json = layers_to_json(*result, "model");
  EXPECT_EQ(json["schema"], "kvant.layers/1");
  const auto& plain = json["results"][0]["layers"][1];
  const auto& skipping = json["results"][1]["layers"][1];
  const auto& protecting = json["results"][2]["layers"][1];
  EXPECT_FALSE(plain.contains("skip_rate"));
  EXPECT_EQ(plain["heads"].size(), 4U);
  EXPECT_GT(skipping["skip_rate"], 0.01);
  EXPECT_LT(skipping["skip_rate"], 1.0);
  EXPECT_GT(skipping["skipped_mass"], 0.0);
  EXPECT_GT(skipping["mse"], plain["mse"]);
  EXPECT_GT(protecting["mass_unsealed"], 0.05);
  EXPECT_GT(protecting["mass_protected"], 0.0);
  EXPECT_LT(protecting["mass_unsealed"].get<double>() + protecting["mass_protected"].get<double>(), 1.0);
  const std::string table = layers_table(*result);
  EXPECT_NE(table.find("[2] tok4g32s,skip=0.01"), std::string::npos);
  EXPECT_NE(table.find("[3] window"), std::string::npos) << table;
  EXPECT_EQ(table.find("[1] skip"), std::string::npos) << table;
}

TEST(LayerEval, RefusesATextShorterThanAChunk) {
  Measured measure;
  EXPECT_FALSE(measure({"tok4g32s"}, {.context = 4000}).ok());
}

}  // namespace
}  // namespace kvant::layer_eval_test
