// SessionFolder: the sessions of a server on the disk, a file each.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "session/session_file.h"

namespace kvant {

// Letters, digits, '_' and '-', 64 at most: so that a name is never a path.
bool is_session_name(std::string_view name);
inline constexpr const char* kSessionNameRule =
    "a session's name has 1 to 64 letters (a to z, A to Z), digits, '_' and '-'";

struct FileCoding {
  std::shared_ptr<const SequenceCoder> coder;  // null: no compact file can be read
  bool compact = false;                        // files are written with it
};

class SessionFolder {
 public:
  // Makes the folder where there is none, and removes what a server has left that was killed while it wrote.
  // identity: of the sessions that can be gone on with. coding: how files are written, and which can be read.
  // An error: it can't be written, or another server uses it.
  static Result<std::unique_ptr<SessionFolder>> open(const std::string& path, SessionIdentity identity,
                                                     FileCoding coding = {});
  ~SessionFolder();
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;

  // All take valid names. Thread-safe, for different names at the same time.
  std::vector<std::string> names() const;  // in alphabetical order
  bool holds(const std::string& name) const;
  std::int64_t last_write(const std::string& name) const;  // seconds since 1970; 0: there is none
  std::string file_of(const std::string& name) const;
  Result<SessionFile> read(const std::string& name) const;
  // The file's bytes.
  Result<std::int64_t> write(const std::string& name, const SessionContents& contents) const;
  // Of the file that it would be written to; at most those, where files are compact.
  std::int64_t file_bytes(const SessionContents& contents) const;
  Status remove(const std::string& name) const;  // nothing where there is none

 private:
  SessionFolder(std::string path, SessionIdentity identity, FileCoding coding, int lock)
      : path_(std::move(path)), identity_(std::move(identity)), coding_(std::move(coding)), lock_(lock) {}
  std::string path_;
  SessionIdentity identity_;
  FileCoding coding_;
  int lock_;  // the file that is locked as long as the server runs
};

}  // namespace kvant
