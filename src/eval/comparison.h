// Comparison: the differences between two result files of kvant, and whether they exceed noise.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/logit_metrics.h"

namespace kvant {

enum class Verdict { better, worse, noise, unknown };  // unknown: the results carry no interval

struct FigureComparison {
  std::string row;     // "kvant-2bit at 2048 tokens"
  std::string figure;  // as in the JSON: "kld_mean"
  double before = 0, after = 0;
  bool paired = false;               // measured on the same text or prompts, piece by piece
  std::optional<Interval> interval;  // paired: 95 % of after - before (Student's t over the pieces)
  Verdict verdict = Verdict::unknown;
};

struct Comparison {
  std::vector<FigureComparison> figures;
  std::vector<std::string> only_before, only_after;  // rows
  std::vector<std::string> notes;                    // other differences: "the models differ"
};

// Compares rows of the same recipe, label and context in two documents (or arrays of them) that --json wrote.
// Unpaired figures with intervals differ if these don't overlap. Errors: a document has an unknown schema, or
// the two have no row in common.
Result<Comparison> compare_results(const nlohmann::ordered_json& before, const nlohmann::ordered_json& after);

// Returns the 95 % interval of the mean of at least two values, by Student's t distribution.
Interval student_interval(std::span<const double> values);

std::string comparison_table(const Comparison& comparison);
// Returns {"schema":"kvant.compare/1",..}: see docs/reference/json.md.
nlohmann::ordered_json comparison_to_json(const Comparison& comparison);

}  // namespace kvant
