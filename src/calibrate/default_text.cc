#include "calibrate/default_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace kvant {
namespace {

std::vector<std::filesystem::path> text_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Result<std::string> default_calibration_text() {
  const std::filesystem::path folders[] = {KVANT_SOURCE_DATA "/calibration",
                                           KVANT_INSTALLED_DATA "/calibration"};
  for (const auto& folder : folders) {
    std::ostringstream text;
    bool whole = true;
    for (const auto& path : text_files(folder)) {
      std::ifstream file(path, std::ios::binary);
      text << file.rdbuf() << '\n';
      whole = whole && file.good();
    }
    if (whole && !text.str().empty()) return text.str();
  }
  return error("cannot read the calibration text that ships with kvant in '{}' or '{}': give a text with -f",
               folders[0].string(), folders[1].string());
}

}  // namespace kvant
