// States what must hold for any file that `kvant compare` or the parser of prompts reads. The fuzz target and
// the test of its seeds call the check.
#pragma once

#include <string>

#include "base/json_reader.h"
#include "eval/comparison.h"
#include "eval/greedy/prompts.h"

namespace kvant {

// Checks that comparing two results succeeds or returns an error for any text. A line "and" in the text
// separates the two results. Without such a line the text is compared with itself.
inline void check_comparison(const std::string& text) {
  (void)parse_prompts(text);
  const std::string between = "\nand\n";
  const std::size_t cut = text.find(between);
  const auto before = parse_json(text.substr(0, cut));
  if (!before.ok()) return;
  const auto after = cut == std::string::npos ? before : parse_json(text.substr(cut + between.size()));
  if (!after.ok()) return;
  const auto comparison = compare_results(*before, *after);
  if (!comparison.ok()) {
    KVANT_CHECK(!comparison.error().message.empty(), "an error without a sentence");
    return;
  }
  KVANT_CHECK(!comparison_table(*comparison).empty(), "an empty table");
  (void)comparison_to_json(*comparison).dump();
}

}  // namespace kvant
