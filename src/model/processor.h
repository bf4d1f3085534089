// Checks that the processor has the instructions for which ggml was compiled. Programs and wheels are copied
// to other machines, where an instruction may be missing.
#pragma once

#include <span>

#include "base/result.h"

namespace kvant {

struct InstructionSet {
  const char* name;
  bool is_wanted;  // ggml was compiled to use the instructions
  bool is_there;
};

// Returns an error that names the instruction sets that ggml needs and the processor lacks. Without this
// check, the first use of ggml would end the program with an illegal instruction.
Status check_instruction_sets(std::span<const InstructionSet> sets);
// Checks that the processor has the instructions that the loaded ggml needs.
Status check_processor();

}  // namespace kvant
