// Writes the results of tasks as JSON and as a table for a terminal, and reads the JSON of an earlier run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/tasks/task_eval.h"

namespace kvant {

// Describes a run. Rows of two runs are comparable only if the descriptions and the rows' plans are equal.
struct TaskRun {
  std::string model;    // the model's file
  std::string weights;  // the type of the weights
  std::string device;
  int parallel = 1;
};

// Returns {"schema":"kvant.tasks/1",..}, which docs/reference/json.md describes. The first row of
// each task must be the reference's.
nlohmann::ordered_json tasks_to_json(const TaskRun& run, const std::vector<TaskRow>& rows);

// Holds an earlier document of tasks_to_json().
struct EarlierTasks {
  TaskRun run;
  std::vector<TaskRow> rows;
};

// Reads a document of tasks_to_json(). Returns an error if the text is no such document.
Result<EarlierTasks> tasks_from_json(const std::string& text);
// Returns the rows of an earlier document. Returns an error if the text is no such document, or if its model,
// weights, device or number of sequences differ from those of `run`.
Result<std::vector<TaskRow>> tasks_from_json(const std::string& text, const TaskRun& run);

// Formats one table per task.
std::string tasks_table(const std::vector<TaskRow>& rows);

}  // namespace kvant
