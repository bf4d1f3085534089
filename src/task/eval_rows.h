// Decides which caches are the rows of kvant eval, before anything is loaded.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "eval/suite.h"
#include "recipe/recipe.h"

namespace kvant {

struct EvalRow {
  std::string label;  // label of a suite's row, or the text of its calibration; empty: none
  std::string name;
  Recipe recipe;  // unused if names_llama(name)
  int step_tokens = 0;
  std::string calibration_text;  // file to calibrate on; empty: the usual calibration
};

// Returns the reference first. A row (a recipe or "llama.cpp:TYPE") that equals the reference is not run
// twice.
Result<std::vector<EvalRow>> parse_eval_rows(const std::string& reference, const std::vector<SuiteRow>& rows,
                                             int step_tokens);

// Returns bf16 in smaller steps. Its error is that of rounding alone.
EvalRow control_row();

// Replaces each row whose recipe needs calibration by one row per file.
std::vector<EvalRow> calibrated_on(const std::vector<EvalRow>& rows, const std::vector<std::string>& files,
                                   const Geometry& geometry);

}  // namespace kvant
