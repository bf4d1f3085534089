// FileStamp tells whether a file is still the one that this program wrote or read.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

namespace kvant {

class FileStamp {
 public:
  explicit FileStamp(const struct stat& info) : info_(info) {}
  bool operator==(const FileStamp& other) const;

 private:
  struct stat info_;
};

// Returns the stamp of the regular file at `path`, or nothing if there is none.
std::optional<FileStamp> stamp_of(const std::string& path);

}  // namespace kvant
