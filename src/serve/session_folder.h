// SessionFolder keeps a server's sessions on disk, one file each. Only one server at a time can use a folder,
// and a file is either complete or absent.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "session/session_file.h"

namespace kvant {

// Returns whether a name has 1 to 64 letters, digits, '_' and '-'. A valid name can therefore never be a
// path.
bool is_session_name(std::string_view name);
inline constexpr const char* kSessionNameRule =
    "a session's name has 1 to 64 letters (a to z, A to Z), digits, '_' and '-'";

struct FileCoding {
  std::shared_ptr<const SequenceCoder> coder;  // if null, compact files cannot be read
  bool compact = false;                        // new files are written in compact form
};

class SessionFolder {
 public:
  // Makes the folder if it does not exist, and removes files that a killed server left half-written. Only
  // sessions with this `identity` can be continued. `coding` says how files are written, and which files can
  // be read. Returns an error if the folder cannot be written, or if another server uses it.
  static Result<std::unique_ptr<SessionFolder>> open(const std::string& path, SessionIdentity identity,
                                                     FileCoding coding = {});
  ~SessionFolder();
  SessionFolder(const SessionFolder&) = delete;
  SessionFolder& operator=(const SessionFolder&) = delete;

  // The functions from names() to remove() require valid names. Several threads may call the functions at the
  // same time for different names.
  std::vector<std::string> names() const;  // names in alphabetical order
  bool holds(const std::string& name) const;
  std::int64_t last_write(const std::string& name) const;  // seconds since 1970; 0 if there is no file
  std::optional<FileStamp> stamp(const std::string& name) const { return stamp_of(file_of(name)); }
  std::string file_of(const std::string& name) const;
  Result<SessionFile> read(const std::string& name) const;
  // Writes a session's file and returns the file's size in bytes.
  Result<std::int64_t> write(const std::string& name, const SessionContents& contents) const;
  // Returns the size of the file that write() would write. For compact files, the result is an upper bound.
  std::int64_t file_bytes(const SessionContents& contents) const;
  Status remove(const std::string& name) const;  // does nothing if there is no file

 private:
  SessionFolder(std::string path, SessionIdentity identity, FileCoding coding, int lock)
      : path_(std::move(path)), identity_(std::move(identity)), coding_(std::move(coding)), lock_(lock) {}
  std::string path_;
  SessionIdentity identity_;
  FileCoding coding_;
  int lock_;  // the lock file, locked as long as the server runs
};

}  // namespace kvant
