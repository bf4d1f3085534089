// Compares two result files of kvant figure by figure, for the command `kvant compare`. A difference counts
// only if it exceeds the noise. If both files measured the same text, the noise is computed from the
// differences of single pieces.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "eval/logit_metrics.h"

namespace kvant {

// `unknown` means that the results carry no interval.
enum class Verdict { better, worse, noise, unknown };

struct FigureComparison {
  // An example is "kvant-2bit at 2048 tokens".
  std::string row;
  // Names a field of the JSON, for example "kld_mean".
  std::string figure;
  double before = 0, after = 0;
  // Says whether both results measured the same text or prompts. Pieces can then be compared one to one.
  bool paired = false;
  // Holds the 95 % interval of after - before by Student's t distribution over the pieces. Only paired
  // figures have an interval.
  std::optional<Interval> interval;
  Verdict verdict = Verdict::unknown;
};

struct Comparison {
  std::vector<FigureComparison> figures;
  // These lists name the rows that only one of the two files has.
  std::vector<std::string> only_before, only_after;
  // This list states other differences between the files, for example "the models differ".
  std::vector<std::string> notes;
};

// Compares rows with equal recipe, label, task and context in two documents, or arrays of documents, that
// --json wrote. Unpaired figures differ if their intervals do not overlap. Returns an error if a document has
// an unknown schema or if the two documents have no row in common.
Result<Comparison> compare_results(const nlohmann::ordered_json& before, const nlohmann::ordered_json& after);

// Returns the 95 % interval of the mean of at least two values, by Student's t distribution.
Interval student_interval(std::span<const double> values);

std::string comparison_table(const Comparison& comparison);
// Returns {"schema":"kvant.compare/1",..}, which docs/reference/json.md describes.
nlohmann::ordered_json comparison_to_json(const Comparison& comparison);

}  // namespace kvant
