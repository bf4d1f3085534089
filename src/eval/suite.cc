#include "eval/suite.h"

#include <algorithm>

namespace kvant {

#define KVANT_SUITES(paper) std::vector<Suite> paper##_suites();
#include "eval/suites.def"
#undef KVANT_SUITES

const std::vector<Suite>& suites() {
  static const std::vector<Suite> kSuites = [] {
    std::vector<Suite> all;
    const auto add = [&](std::vector<Suite> of_paper) {
      std::move(of_paper.begin(), of_paper.end(), std::back_inserter(all));
    };
#define KVANT_SUITES(paper) add(paper##_suites());
#include "eval/suites.def"
#undef KVANT_SUITES
    return all;
  }();
  return kSuites;
}

std::string suite_list() {
  std::string text;
  for (const Suite& suite : suites()) text += fmt::format("  {:<22} {}\n", suite.name, suite.title);
  return text;
}

Result<Suite> find_suite(const std::string& name) {
  const auto found =
      std::find_if(suites().begin(), suites().end(), [&](const Suite& suite) { return suite.name == name; });
  if (found == suites().end())
    return error("there is no suite '{}'; the suites are:\n{}", name, suite_list());
  return *found;
}

}  // namespace kvant
