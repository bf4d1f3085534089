// Checks that this processor has the instructions for which ggml was compiled, because programs and wheels
// are copied to other machines.
#pragma once

#include <span>

#include "base/result.h"

namespace kvant {

struct InstructionSet {
  const char* name;
  bool is_wanted;  // ggml was compiled for it
  bool is_there;
};

// The error names instruction sets that ggml needs and the processor lacks. Without this check, the first use
// of ggml would end the program with an illegal instruction.
Status check_instruction_sets(std::span<const InstructionSet> sets);
// Checks this processor for the loaded ggml.
Status check_processor();

}  // namespace kvant
