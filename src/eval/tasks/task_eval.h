// Scores caches on tasks: each cache completes the same problems greedily, and every cache is compared with
// the reference, problem by problem.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/tasks/shares.h"
#include "eval/tasks/task.h"

namespace kvant {

// Holds what a cache made of one problem.
struct TaskAnswer {
  std::string id;
  TaskScore score;
  int tokens = 0;
  bool was_cut = false;  // the limit of tokens has ended the completion
  std::string completion;
};

// Holds the results of one cache on one task.
struct TaskRow {
  std::string recipe;
  // Holds the label of a suite's row or of a calibration text; usually empty.
  std::string label;
  std::string task;
  int depth = 0;
  bool has_form = false;
  // Limits the tokens of a completion. 0 means that an earlier version has not written the limit.
  int max_tokens = 0;
  // Holds the fingerprint of the prompts and of the limits of tokens.
  std::string prompts;
  std::vector<TaskAnswer> answers;  // one per problem
  double seconds = 0;               // seconds of generation
  nlohmann::ordered_json plan;
};

// Runs one cache on one task. `judges` threads judge the completions. done() is called after each completion.
Result<TaskRow> evaluate_task(Engine& engine, AttentionBackend& backend, const PlacedPlan& plan,
                              const Task& task, const BatchOptions& options, int judges,
                              const std::function<void()>& done);

// Judges the completions of a row, with `judges` threads. Returns an error if a problem could not be judged.
Status judge_row(const Task& task, int judges, TaskRow& row);

// Returns an error, which names the option to change, if a row's completions are not those of the task's
// problems.
Status check_problems(const TaskRow& row, const Task& task);

// Returns the fingerprint that TaskRow::prompts holds.
std::string task_fingerprint(const Task& task);

struct TaskFigures {
  int problems = 0;
  int right = 0;
  double score = 0;   // share of right completions
  Interval interval;  // Wilson
  int valid = 0;      // completions of the task's form
  double valid_share = 0;
  Interval valid_interval;
  int cut = 0;  // completions that the limit of tokens has ended
  double mean_tokens = 0;
  PairedShares change;        // compared with the reference's right completions
  PairedShares valid_change;  // compared with the reference's valid completions
};
// `reference` is the reference's row of the same task, and may be `row` itself.
TaskFigures summarize(const TaskRow& row, const TaskRow& reference);

}  // namespace kvant
