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
  return error("cannot write '{}': {}; choose another file or free some disk space", path,
               std::strerror(code));
}

// Resolves symbolic links, so renaming replaces the file to which a link points, and not the link.
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

using Parts = std::vector<std::span<const std::byte>>;

// Writes all parts. Returns 0, or the errno of the write that failed.
int write_all(int file, const Parts& parts) {
  for (std::span<const std::byte> left : parts) {
    while (!left.empty()) {
      const ssize_t n = write(file, left.data(), left.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      left = left.subspan(static_cast<std::size_t>(n));
    }
  }
  return 0;
}

std::string temporary_name(const std::string& target) {
  return target + "." + std::to_string(getpid()) + kTemporaryEnding;
}

// Opens a new file. If a file with this process's number exists, a process that is gone has left it, so it is
// replaced.
int open_new(const std::string& path, mode_t mode) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const int file = open(path.c_str(), kFlags, mode);
  if (file >= 0 || errno != EEXIST || unlink(path.c_str()) != 0) return file;
  return open(path.c_str(), kFlags, mode);
}

Status write_directly(const std::string& path, const Parts& parts) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return write_error(path, errno);
  const int code = write_all(file, parts);
  close(file);
  if (code != 0) return write_error(path, code);
  return {};
}

}  // namespace

int sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return 0;
  const int code = fsync(file) == 0 || errno == EINVAL ? 0 : errno;
  close(file);
  return code;
}

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
  const int file = open_new(temporary, 0666);
  if (file < 0) return write_error(path, errno);
  close(file);
  unlink(temporary.c_str());
  return {};
}

Status write_whole_file(const std::string& path, const std::string& text) {
  return write_whole_file(path, {std::as_bytes(std::span(text))});
}

Status write_whole_file(const std::string& path, const Parts& parts, mode_t mode) {
  const std::string target = followed(path);
  if (kind_of(target) == Kind::special) return write_directly(target, parts);
  const std::string temporary = temporary_name(target);
  const int file = open_new(temporary, mode);
  if (file < 0) return write_error(path, errno);
  int code = write_all(file, parts);
  if (code == 0 && fsync(file) != 0) code = errno;
  if (close(file) != 0 && code == 0) code = errno;
  if (code == 0 && rename(temporary.c_str(), target.c_str()) != 0) code = errno;
  if (code != 0) unlink(temporary.c_str());
  if (code == 0) code = sync_folder_of(target);
  if (code == 0) return {};
  return write_error(path, code);
}

}  // namespace kvant
