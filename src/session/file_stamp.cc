#include "session/file_stamp.h"

namespace kvant {

bool FileStamp::operator==(const FileStamp& other) const {
  const struct stat &a = info_, &b = other.info_;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat info {};
  const bool is_file = stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return is_file ? std::optional(FileStamp(info)) : std::nullopt;
}

}  // namespace kvant
