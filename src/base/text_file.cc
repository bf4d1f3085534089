#include "base/text_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvant {

Result<std::string> read_text_file(const std::string& path) {
  if (path == "-") return read_text_file("/dev/stdin");
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return error("cannot read '{}': it is a directory", path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad())
    return error("cannot read '{}': {}", path, errno != 0 ? std::strerror(errno) : "not a file");
  if (text.str().empty()) return error("the file '{}' is empty", path);
  return text.str();
}

}  // namespace kvant
