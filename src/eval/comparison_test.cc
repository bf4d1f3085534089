#include "eval/comparison.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "eval/comparison_property.h"

namespace kvant {
namespace {

using Json = nlohmann::ordered_json;

Json eval_result(const std::string& recipe, const std::vector<double>& blocks, const std::string& text) {
  double sum = 0;
  for (const double block : blocks) sum += block;
  const double mean = sum / static_cast<double>(blocks.size());
  return {{"schema", "kvant.eval/2"},
          {"model", "m.gguf"},
          {"context", 2048},
          {"chunks", blocks.size()},
          {"text", text},
          {"results",
           {{{"recipe", recipe},
             {"kld_mean", mean},
             {"kld_lo", mean - 0.1},
             {"kld_hi", mean + 0.1},
             {"kld_blocks", blocks}}}}};
}

const FigureComparison& only_figure(const Result<Comparison>& comparison) {
  EXPECT_TRUE(comparison.ok());
  EXPECT_EQ(comparison->figures.size(), 1U);
  return comparison->figures.front();
}

// The differences 0.1, 0.2 and 0.3 have mean 0.2 and standard deviation 0.1. Student's t is 4.303 for 2
// degrees of freedom.
TEST(Comparison, PairsPiecesOfTheSameText) {
  const auto comparison =
      compare_results(eval_result("a", {1, 2, 3}, "t"), eval_result("a", {1.1, 2.2, 3.3}, "t"));
  const FigureComparison& figure = only_figure(comparison);
  EXPECT_TRUE(figure.paired);
  const double half = 4.303 * 0.1 / std::sqrt(3.0);
  EXPECT_NEAR(figure.interval->lo, 0.2 - half, 1e-12);
  EXPECT_NEAR(figure.interval->hi, 0.2 + half, 1e-12);
  EXPECT_EQ(figure.verdict, Verdict::noise);
  EXPECT_EQ(figure.row, "a at 2048 tokens");

  const auto steady =
      compare_results(eval_result("a", {1, 2, 3}, "t"), eval_result("a", {1.2, 2.19, 3.21}, "t"));
  EXPECT_EQ(only_figure(steady).verdict, Verdict::worse);
}

TEST(Comparison, UsesIntervalsWhereTextsDiffer) {
  const auto apart = compare_results(eval_result("a", {1, 2}, "t"), eval_result("a", {0.5, 1.9}, "u"));
  EXPECT_FALSE(only_figure(apart).paired);
  // The intervals are 1.4 .. 1.6 before and 1.1 .. 1.3 after.
  EXPECT_EQ(only_figure(apart).verdict, Verdict::better);
  EXPECT_EQ(apart->notes.size(), 1U);
  const auto close = compare_results(eval_result("a", {1, 2}, "t"), eval_result("a", {1, 1.9}, "u"));
  EXPECT_EQ(only_figure(close).verdict, Verdict::noise);
}

TEST(Comparison, TellsWhichRowsOnlyOneHas) {
  Json before = Json::array({eval_result("a", {1, 2}, "t"), eval_result("b", {1, 2}, "t")});
  const auto comparison = compare_results(before, eval_result("a", {1, 2}, "t"));
  ASSERT_TRUE(comparison.ok());
  EXPECT_EQ(comparison->only_before, std::vector<std::string>{"b at 2048 tokens"});
  EXPECT_NE(comparison_table(*comparison).find("only before: b"), std::string::npos);
}

TEST(Comparison, HasNoVerdictWithoutIntervals) {
  const auto bench = [](double tps) {
    return Json{
        {"schema", "kvant.bench/1"},
        {"model", "m"},
        {"results", {{{"recipe", "a"}, {"depth", 64}, {"prompt_tps", nullptr}, {"decode_tps", tps}}}}};
  };
  const auto comparison = compare_results(bench(10), bench(20));
  EXPECT_EQ(only_figure(comparison).verdict, Verdict::unknown);
  EXPECT_EQ(only_figure(comparison).row, "a at depth 64");
}

TEST(Comparison, RefusesWhatCannotBeCompared) {
  EXPECT_FALSE(compare_results(eval_result("a", {1, 2}, "t"), eval_result("b", {1, 2}, "t")).ok());
  const auto unknown = compare_results(Json{{"schema", "other/1"}}, eval_result("b", {1, 2}, "t"));
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("kvant.eval/2"), std::string::npos);
  EXPECT_FALSE(compare_results(Json{{"schema", "kvant.eval/2"}}, eval_result("b", {1, 2}, "t")).ok());
}

// A file with the structure of a result but wrong types must be compared as far as possible, or refused with
// a sentence.
TEST(Comparison, TakesAnyJson) {
  const Json good = eval_result("a", {1, 2}, "t");
  const auto changed = [&](const std::function<void(Json&)>& change) {
    Json json = good;
    change(json);
    return json;
  };
  const Json odd[] = {5,
                      nullptr,
                      "text",
                      Json::array(),
                      Json::object(),
                      Json::array({1, good}),
                      {{"schema", 5}},
                      {{"schema", "kvant.eval/2"}, {"results", 5}},
                      {{"schema", "kvant.eval/2"}, {"results", Json::array()}},
                      {{"schema", "kvant.eval/2"}, {"results", Json::array({1})}},
                      {{"schema", "kvant.bench/1"}, {"results", {{{"recipe", "a"}, {"depth", "deep"}}}}},
                      {{"schema", "kvant.retrieval/1"},
                       {"results", {{{"recipe", "a"}, {"logp", 1}, {"answers", {{{"logp", "x"}}, 3}}}}}},
                      changed([](Json& j) { j["context"] = "long"; }),
                      changed([](Json& j) { j["model"] = Json::array({1}); }),
                      changed([](Json& j) { j["results"][0]["recipe"] = 7; }),
                      changed([](Json& j) { j["results"][0]["label"] = Json::object(); }),
                      changed([](Json& j) { j["results"][0]["kld_mean"] = "small"; }),
                      changed([](Json& j) { j["results"][0]["kld_blocks"] = "none"; }),
                      changed([](Json& j) {
                        j["results"][0]["kld_blocks"] = {1, "2"};
                      }),
                      changed([](Json& j) {
                        j["text"] = 3;
                        j["results"][0]["kld_hi"] = "high";
                      })};
  for (const Json& json : odd) {
    for (const auto& [before, after] : {std::pair{json, good}, {good, json}, {json, json}}) {
      const auto comparison = compare_results(before, after);
      if (comparison.ok()) {
        EXPECT_NE(comparison_table(*comparison), "") << json.dump();
        EXPECT_NE(comparison_to_json(*comparison).dump(), "");
      } else {
        EXPECT_NE(comparison.error().message, "") << json.dump();
      }
    }
  }
  const auto no_schema = compare_results(Json{{"schema", 5}}, good);
  ASSERT_FALSE(no_schema.ok());
  EXPECT_NE(no_schema.error().message.find("no \"schema\""), std::string::npos) << no_schema.error().message;
}

// The seeds are the fuzzer's starting inputs and the inputs that the fuzzer found.
TEST(ComparisonFuzzSeeds, AreHandled) {
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "../../fuzz/seeds/results";
  int n_seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::stringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    SCOPED_TRACE(entry.path().string());
    check_comparison(text.str());
    ++n_seeds;
  }
  EXPECT_GT(n_seeds, 5);
}

// Tables of Student's distribution give the quantile 2.042 for 30 degrees of freedom and 2.201 for 11.
TEST(StudentInterval, HasTheRightWidth) {
  for (const auto& [freedom, quantile] : {std::pair{11, 2.201}, {30, 2.042}, {5, 2.571}}) {
    // The values are 1 and -1 in turn.
    std::vector<double> values;
    for (int i = 0; i <= freedom; ++i) values.push_back(i % 2 == 0 ? 1 : -1);
    const Interval interval = student_interval(values);
    const double n = freedom + 1, mean = (interval.lo + interval.hi) / 2;
    const double deviation = std::sqrt((n - n * mean * mean) / freedom);
    EXPECT_NEAR((interval.hi - interval.lo) / 2, quantile * deviation / std::sqrt(n), 0.003 * deviation);
  }
}

}  // namespace
}  // namespace kvant
