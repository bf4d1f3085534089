// Suite: a comparison of recipes that is stored as data, such as an ablation of a paper.
//
// Each paper has a file in suites/ and a line in suites.def.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

struct SuiteRow {
  std::string label;   // the row's name in the paper, or what distinguishes it
  std::string recipe;  // as --kv takes it
};

// Sets the defaults of `kvant eval`, which the command line can override.
struct Suite {
  std::string name;   // "vecinfer-transforms"
  std::string title;  // one line: what is compared, and where the paper does so
  std::vector<SuiteRow> rows;
  std::string reference = "bf16";
  std::vector<int> contexts = {2048};
  int chunks = 4;
  bool layers = false;      // attention outputs of each layer instead of predictions
  bool retrieval = false;   // answers to questions about long documents, `chunks` of each context
  bool all_prompt = false;  // whether the scored half runs as a prompt
};

// Returns all suites, in the order of suites.def.
const std::vector<Suite>& suites();
// Finds a suite; the error lists all of them.
Result<Suite> find_suite(const std::string& name);
// Returns one line per suite.
std::string suite_list();

}  // namespace kvant
