// Runs the tasks of `kvant eval --tasks`: reads their data from a folder, runs all caches on all tasks, and
// keeps the result after every task.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "eval/tasks/task_report.h"
#include "task/eval_rows.h"
#include "task/session.h"

namespace kvant {

struct TaskSetOptions {
  SessionOptions session;
  WeightMode weights = WeightMode::f32;
  // Names the type of the weights in the result.
  std::string weights_name;
  // Lists names of task_set_list().
  std::vector<std::string> tasks;
  // Names the folder with the data of the tasks.
  std::string data;
  // For each number, the problems of tool calls run once after this many tokens of `text_file`.
  std::vector<int> depths = {0};
  std::string text_file;
  int problems = 0;    // at most this many problems of each task; 0 means all
  int max_tokens = 0;  // limits the tokens of a completion; 0 selects the limit of the task
  // This many sequences run at the same time, or as many as fit into memory.
  int parallel = 1;
  std::vector<std::string> recipes;
  std::string reference;  // an empty name selects bf16
  // Adds a row that differs from the reference by rounding alone.
  bool control = false;
  std::vector<std::string> calibrate_on;
  // Holds the result of an earlier run, whose rows do not run again. An empty text starts from nothing.
  std::string earlier;
  // Names files of earlier results, whose completions are judged again.
  std::vector<std::string> judged_files;
};

// Returns an error, which lists the tasks, if no task has this name.
Status check_task_name(const std::string& name);

// Returns a list with one line per task: the name, a summary, and the file of the problems.
std::string task_set_list();

// Runs the tasks. keep() receives the result so far after each cache and task, and `show` receives the
// tables. Returns an error for wrong options before the model is loaded. Also returns an error if a file is
// missing, if a row is a cache of llama.cpp, or if a step fails.
Status run_task_sets(const TaskSetOptions& options,
                     const std::function<Status(const nlohmann::ordered_json&)>& keep,
                     const std::function<void(const std::string&)>& show);

// Judges the completions of earlier results again, and runs no model. keep() receives the rows of all files,
// and `show` the tables. The first row of a task is its reference. If several files have the same row,
// the row of the first file counts. Returns an error if the files come from different runs, or if a row has
// other problems than its task.
Status judge_task_sets(const TaskSetOptions& options,
                       const std::function<Status(const nlohmann::ordered_json&)>& keep,
                       const std::function<void(const std::string&)>& show);

}  // namespace kvant
