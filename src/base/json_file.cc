#include "base/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace kvant {
namespace {

Error write_error(const std::string& path, int code) {
  return error("cannot write '{}': {}; choose another file or make room for it", path, std::strerror(code));
}

// The file that a symbolic link leads to, so that renaming replaces the file and not the link.
std::string followed(const std::string& path) {
  std::error_code failure;
  const auto target = std::filesystem::canonical(path, failure);
  return failure ? path : target.string();
}

enum class Kind { absent, regular, directory, special };

Kind kind_of(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Kind::absent;
  if (S_ISREG(info.st_mode)) return Kind::regular;
  return S_ISDIR(info.st_mode) ? Kind::directory : Kind::special;
}

// Writes everything, or returns the errno.
int write_all(int file, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    done += static_cast<std::size_t>(n);
  }
  return 0;
}

std::string temporary_name(const std::string& target) {
  return target + "." + std::to_string(getpid()) + ".tmp";
}

Status write_directly(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return write_error(path, errno);
  const int code = write_all(file, text);
  close(file);
  if (code != 0) return write_error(path, code);
  return {};
}

}  // namespace

Status check_writable(const std::string& path) {
  const std::string target = followed(path);
  switch (kind_of(target)) {
    case Kind::directory:
      return error("cannot write '{}': it is a directory; name a file", path);
    case Kind::special:
      return access(target.c_str(), W_OK) == 0 ? Status{} : write_error(path, errno);
    case Kind::regular:
      if (access(target.c_str(), W_OK) != 0) return write_error(path, errno);
      break;
    case Kind::absent:
      break;
  }
  const std::string temporary = temporary_name(target);
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return write_error(path, errno);
  close(file);
  unlink(temporary.c_str());
  return {};
}

Status write_whole_file(const std::string& path, const std::string& text) {
  const std::string target = followed(path);
  if (kind_of(target) == Kind::special) return write_directly(target, text);
  const std::string temporary = temporary_name(target);
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return write_error(path, errno);
  int code = write_all(file, text);
  if (code == 0 && fsync(file) != 0) code = errno;
  if (close(file) != 0 && code == 0) code = errno;
  if (code == 0 && rename(temporary.c_str(), target.c_str()) != 0) code = errno;
  if (code == 0) return {};
  unlink(temporary.c_str());
  return write_error(path, code);
}

}  // namespace kvant
