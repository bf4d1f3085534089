// Refuses output files that would replace what a command reads, or a model.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace kvant {

// Returns an error if a file that the parsed command writes is also named by another of its options, or is a
// GGUF file that the command does not make. The function compares files and not names, so links count.
Status check_output_files(const CLI::App& command);

}  // namespace kvant
