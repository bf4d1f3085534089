// Suite: a comparison of recipes that is kept as data, such as an ablation of a paper.
//
// One file for each paper in suites/, and its line in suites.def.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace kvant {

struct SuiteRow {
  std::string label;   // the row's name in the paper, or what sets it apart
  std::string recipe;  // as --kv takes it
};

// What `kvant eval` does where the command line doesn't say otherwise.
struct Suite {
  std::string name;   // "vecinfer-transforms"
  std::string title;  // one line: what is compared, and where the paper does so
  std::vector<SuiteRow> rows;
  std::string reference = "bf16";
  std::vector<int> contexts = {2048};
  int chunks = 4;
  bool layers = false;      // attention outputs of each layer, not predictions
  bool retrieval = false;   // answers to questions about long documents, `chunks` of each context
  bool all_prompt = false;  // the scored half is run as a prompt
};

// In the order of suites.def.
const std::vector<Suite>& suites();
// An error lists all.
Result<Suite> find_suite(const std::string& name);
// A line for each.
std::string suite_list();

}  // namespace kvant
