// SessionFolder keeps a server's sessions on the disk, one file each.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "session/session_file.h"

namespace kvant {

// Allows at most 64 letters, digits, '_' and '-', so a name is never a path.
bool is_session_name(std::string_view name);
inline constexpr const char* kSessionNameRule =
    "a session's name has 1 to 64 letters (a to z, A to Z), digits, '_' and '-'";

struct FileCoding {
  std::shared_ptr<const SequenceCoder> coder;  // null: no compact file can be read
  bool compact = false;                        // files are written in compact form
};

class SessionFolder {
 public:
  // Makes the folder if it does not exist, and removes what a killed server left half-written. `identity` is
  // that of sessions that can be continued. `coding` says how files are written, and which can be read.
  // Errors: the folder cannot be written, or another server uses it.
  static Result<std::unique_ptr<SessionFolder>> open(const std::string& path, SessionIdentity identity,
                                                     FileCoding coding = {});
  ~SessionFolder();
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;

  // All functions take valid names. They are thread-safe for different names.
  std::vector<std::string> names() const;  // in alphabetical order
  bool holds(const std::string& name) const;
  std::int64_t last_write(const std::string& name) const;  // seconds since 1970; 0: there is no file
  std::string file_of(const std::string& name) const;
  Result<SessionFile> read(const std::string& name) const;
  // Returns the file's size in bytes.
  Result<std::int64_t> write(const std::string& name, const SessionContents& contents) const;
  // Returns the size of the file that would be written; for compact files, an upper bound.
  std::int64_t file_bytes(const SessionContents& contents) const;
  Status remove(const std::string& name) const;  // does nothing without a file

 private:
  SessionFolder(std::string path, SessionIdentity identity, FileCoding coding, int lock)
      : path_(std::move(path)), identity_(std::move(identity)), coding_(std::move(coding)), lock_(lock) {}
  std::string path_;
  SessionIdentity identity_;
  FileCoding coding_;
  int lock_;  // locked as long as the server runs
};

}  // namespace kvant
