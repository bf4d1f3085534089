#include "cli/default_model.h"

#include <vector>

namespace kvant {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> places(const fs::path& program, const fs::path& folder) {
  const fs::path home = program.parent_path();
  std::vector<fs::path> found = {home.parent_path() / "share/kvant"};
  for (fs::path above = home; above.has_relative_path(); above = above.parent_path())
    found.push_back(above / ".venv");
  found.push_back(folder / ".venv");
  return found;
}

}  // namespace

Result<std::string> default_model(const fs::path& program, const fs::path& folder) {
  for (const fs::path& place : places(program, folder)) {
    std::error_code failure;
    if (fs::is_regular_file(place / kDefaultModel, failure)) return (place / kDefaultModel).string();
  }
  return error(
      "no model is given, and {} is neither in {} nor in .venv of '{}', of the program's folder or of those "
      "above "
      "it: name a GGUF file with -m, or run `make setup`",
      kDefaultModel, (program.parent_path().parent_path() / "share/kvant").string(), folder.string());
}

Result<std::string> default_model() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  return default_model(program, fs::current_path(failure));
}

}  // namespace kvant
