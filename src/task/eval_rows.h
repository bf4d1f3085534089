// The rows of kvant eval: which caches are compared, before anything is loaded.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "eval/suite.h"
#include "recipe/recipe.h"

namespace kvant {

struct EvalRow {
  std::string label;  // of a suite's row, or the text that it was calibrated on; empty: none
  std::string name;
  Recipe recipe;  // unless names_llama(name)
  int step_tokens = 0;
  std::string calibration_text;  // a file to calibrate on; empty: as without --calibrate-on
};

// The reference first. Of `rows` (recipes or "llama.cpp:TYPE"), one that equals it is not run twice.
Result<std::vector<EvalRow>> parse_eval_rows(const std::string& reference, const std::vector<SuiteRow>& rows,
                                             int step_tokens);

// bf16 in smaller steps: what rounding alone makes of it.
EvalRow control_row();

// A row for each of `files` in place of one whose recipe needs calibration.
std::vector<EvalRow> calibrated_on(const std::vector<EvalRow>& rows, const std::vector<std::string>& files,
                                   const Geometry& geometry);

}  // namespace kvant
