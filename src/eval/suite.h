// A suite is a comparison of recipes that is stored as data, such as the ablation of a paper. `kvant eval
// --suite` runs a suite by name. Each paper has a file in suites/ and a line in suites.def.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

struct SuiteRow {
  // The label is the row's name in the paper, or the feature that distinguishes the row.
  std::string label;
  // Holds the text that --kv takes.
  std::string recipe;
};

// Sets the defaults of `kvant eval`. The command line can override each default.
struct Suite {
  // An example is "vecinfer-transforms".
  std::string name;
  // One line says what is compared, and where the paper compares it.
  std::string title;
  std::vector<SuiteRow> rows;
  std::string reference = "bf16";
  std::vector<int> contexts = {2048};
  int chunks = 4;
  // Measures attention outputs of each layer instead of predictions.
  bool layers = false;
  // Asks questions about long documents, `chunks` documents of each context.
  bool retrieval = false;
  // Runs the scored half as a prompt.
  bool all_prompt = false;
};

// Returns all suites, in the order of suites.def.
const std::vector<Suite>& suites();
// Finds a suite by name. The error for an unknown name lists all suites.
Result<Suite> find_suite(const std::string& name);
// Returns a list with one line per suite.
std::string suite_list();

}  // namespace kvant
