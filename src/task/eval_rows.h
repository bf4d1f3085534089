// Decides which caches are the rows of `kvant eval`. The decision precedes all loading, so a wrong name is
// reported at once.
#pragma once

#include <string>
#include <vector>

#include "base/geometry.h"
#include "base/result.h"
#include "eval/suite.h"
#include "recipe/recipe.h"

namespace kvant {

struct EvalRow {
  // Holds the label of a suite's row or the name of the text for calibration. For other rows the label is
  // empty.
  std::string label;
  std::string name;
  // Rows of llama.cpp, for which names_llama(name) is true, do not use `recipe`.
  Recipe recipe;
  int step_tokens = 0;
  // Names the file to calibrate on; an empty name selects the usual calibration.
  std::string calibration_text;
};

// Returns the rows, with the reference first. A row is a recipe or "llama.cpp:TYPE". A row that equals the
// reference is dropped, because the reference always runs.
Result<std::vector<EvalRow>> parse_eval_rows(const std::string& reference, const std::vector<SuiteRow>& rows,
                                             int step_tokens);

// Returns a row for bf16 with smaller steps. The divergence of this row shows the effect of rounding alone.
EvalRow control_row();

// Replaces each row whose recipe needs calibration by one row for each of `files`.
std::vector<EvalRow> calibrated_on(const std::vector<EvalRow>& rows, const std::vector<std::string>& files,
                                   const Geometry& geometry);

}  // namespace kvant
