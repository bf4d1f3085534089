#include "eval/tasks/task_eval.h"

#include <gtest/gtest.h>

#include "cache/cache_fixture.h"
#include "eval/comparison.h"
#include "eval/tasks/task_report.h"
#include "model/tiny_model.h"
#include "model/tokenizer.h"

namespace kvant {
namespace {

// Returns a row with one answer per character: R is right and valid, V is only valid, and any other character
// is neither.
TaskRow row_of(const std::string& recipe, const std::string& answers) {
  TaskRow row{.recipe = recipe, .task = "bfcl-simple", .depth = 8192, .has_form = true, .prompts = "0123"};
  for (const char c : answers)
    row.answers.push_back({std::string(1, c), {c == 'R', c == 'R' || c == 'V'}, 10, c == '-', "text"});
  return row;
}

void expect_other_problems(const TaskRow& row, const Task& task, const std::string& part) {
  const Status same = check_problems(row, task);
  ASSERT_FALSE(same.ok());
  EXPECT_NE(same.error().message.find(part), std::string::npos) << same.error().message;
}

TEST(TaskEval, SumsUpAnswers) {
  const TaskRow reference = row_of("bf16", "RRRV-"), own = row_of("q4_0", "RV-RV");
  const TaskFigures figures = summarize(own, reference);
  EXPECT_EQ(figures.problems, 5);
  EXPECT_EQ(figures.right, 2);
  EXPECT_EQ(figures.score, 0.4);
  EXPECT_EQ(figures.valid, 4);
  EXPECT_EQ(figures.cut, 1);
  EXPECT_EQ(figures.mean_tokens, 10);
  EXPECT_EQ(figures.change.gained, 1);
  EXPECT_EQ(figures.change.lost, 2);
  EXPECT_EQ(figures.valid_change.gained, 1);
  EXPECT_EQ(figures.valid_change.lost, 1);
}

TEST(TaskEval, WritesResultsThatItReadsAgain) {
  const TaskRun run{"model.gguf", "f32", "cuda", 64};
  std::vector<TaskRow> rows = {row_of("bf16", "RRRV-"), row_of("q4_0", "RV-RV")};
  rows[1].label = "on essays";
  rows[1].plan = {{"tail", "bf16"}};
  rows[1].max_tokens = 20;
  const auto json = tasks_to_json(run, rows);
  EXPECT_EQ(json["schema"], "kvant.tasks/1");
  EXPECT_EQ(json["results"][1]["score"], 0.4);
  EXPECT_EQ(json["results"][1]["lost"], 2);
  EXPECT_EQ(json["results"][1]["valid_share"], 0.8);
  EXPECT_EQ(json["results"][0]["change"], 0.0);
  const auto again = tasks_from_json(json.dump(), run);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(tasks_to_json(run, *again), json);
  const auto other = tasks_from_json(json.dump(), {"model.gguf", "q8_0", "cuda", 64});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("--weights \"f32\", and not \"q8_0\""), std::string::npos);
  EXPECT_FALSE(tasks_from_json("{}", run).ok());
  EXPECT_FALSE(tasks_from_json("[", run).ok());
  auto broken = json;
  broken["results"][1].erase("answers");
  EXPECT_FALSE(tasks_from_json(broken.dump(), run).ok());
}

TEST(TaskEval, ShowsOneTablePerTask) {
  std::vector<TaskRow> rows = {row_of("bf16", "RRRV-"), row_of("bf16", "RRRRR"), row_of("q4_0", "RV-RV"),
                               row_of("q4_0", "RRRRV")};
  rows[1].task = rows[3].task = "gsm8k";
  rows[1].depth = rows[3].depth = 0;
  rows[1].has_form = rows[3].has_form = false;
  const std::string table = tasks_table(rows);
  EXPECT_NE(table.find("bfcl-simple after 8192 tokens, 5 problems"), std::string::npos) << table;
  EXPECT_NE(table.find("gsm8k, 5 problems"), std::string::npos) << table;
  EXPECT_NE(table.find("+1 -2"), std::string::npos) << table;
  EXPECT_NE(table.find("+0 -1"), std::string::npos) << table;
}

TEST(TaskEval, ComparesResultsProblemByProblem) {
  const TaskRun run{"model.gguf", "f32", "cuda", 64};
  const auto before = tasks_to_json(run, {row_of("bf16", "RRRRRRRRRRRRVVVV")});
  const auto after = tasks_to_json(run, {row_of("bf16", "RRRRVVVVVVVVVVVV")});
  const auto comparison = compare_results(before, after);
  ASSERT_TRUE(comparison.ok()) << comparison.error().message;
  ASSERT_EQ(comparison->figures.size(), 2U);
  EXPECT_EQ(comparison->figures[0].row, "bf16 on bfcl-simple at depth 8192");
  EXPECT_EQ(comparison->figures[0].figure, "score");
  EXPECT_TRUE(comparison->figures[0].paired);
  EXPECT_EQ(comparison->figures[0].verdict, Verdict::worse);
  EXPECT_EQ(comparison->figures[1].figure, "valid_share");
  EXPECT_EQ(comparison->figures[1].verdict, Verdict::noise);
}

TEST(TaskEval, JudgesWhatAModelCompletes) {
  const auto file = write_tiny_model({.n_layers = 1});
  const auto engine = Engine::load(file->path(), {.n_threads = 1}).value();
  const auto backend = make_cpu_backend();
  const PlacedPlan plan = testing::plan_for("bf16", engine->geometry(), nullptr, backend->page_order());
  Task task{.name = "length"};
  for (int i = 0; i < 5; ++i) {
    TaskProblem problem{std::to_string(i), {{3, 4 + i, 9}, {.max_tokens = 3 + i}}, {}};
    problem.judge = [](const std::string& completion) {
      return TaskScore{.is_right = completion.size() > 4};
    };
    task.problems.push_back(std::move(problem));
  }
  int n_done = 0;
  const auto row =
      evaluate_task(*engine, *backend, plan, task, {.parallel = 3}, /*judges=*/2, [&] { ++n_done; });
  ASSERT_TRUE(row.ok()) << row.error().message;
  EXPECT_EQ(n_done, 5);
  ASSERT_EQ(row->answers.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(row->answers[i].id, std::to_string(i));
    EXPECT_EQ(row->answers[i].score.is_right, row->answers[i].completion.size() > 4);
    EXPECT_LE(row->answers[i].tokens, 3 + static_cast<int>(i));
  }
  EXPECT_EQ(row->max_tokens, 7);
  EXPECT_TRUE(check_problems(*row, task).ok());
  task.problems[2].prompt.options.max_tokens = 7;
  expect_other_problems(*row, task, "-f and --task-data");
  task.problems[2].prompt.options.max_tokens = 9;
  expect_other_problems(*row, task, "with -n 7, and not 9");
  task.problems.pop_back();
  expect_other_problems(*row, task, "5 problems of length, and not 4: give the --chunks");
}

}  // namespace
}  // namespace kvant
