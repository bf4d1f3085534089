#include "base/text_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace kvant {
namespace {

// Some editors put this mark at the start of a file to say that the file is UTF-8 (Unicode 15, section 23.8).
// The mark is not part of the text.
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

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
  std::string read = std::move(text).str();
  if (read.starts_with(kByteOrderMark)) read.erase(0, kByteOrderMark.size());
  if (read.empty()) return error("the file '{}' is empty", path);
  return read;
}

}  // namespace kvant
