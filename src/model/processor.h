// Whether this processor has the instructions that ggml was compiled for: programs and wheels travel.
#pragma once

#include <span>

#include "base/result.h"

namespace kvant {

struct InstructionSet {
  const char* name;
  bool is_wanted;  // by ggml as it was compiled
  bool is_there;
};

// An error names those that are wanted and not there. (Otherwise the first use of ggml ends the program with
// an illegal instruction.)
Status check_instruction_sets(std::span<const InstructionSet> sets);
// Of this processor and the ggml that is loaded.
Status check_processor();

}  // namespace kvant
