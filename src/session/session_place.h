// SessionPlace is the file in which one program keeps a session. Two programs with one file never overwrite
// each other's conversation.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "session/file_stamp.h"

namespace kvant {

class SessionPlace {
 public:
  SessionPlace() = default;  // no file
  // Returns an error if the file lies in the folder of a running server. While the place exists, no server
  // begins to use the folder. Call open() before the file is read.
  static Result<SessionPlace> open(std::string path);
  SessionPlace(SessionPlace&& other) noexcept { *this = std::move(other); }
  SessionPlace& operator=(SessionPlace&& other) noexcept;
  ~SessionPlace();

  // Returns an empty string if there is no file.
  const std::string& path() const { return path_; }
  // Returns whether another program has written the file since open() or note_written().
  bool is_changed() const;
  // Call move_if_changed() before the file is written. If the file is changed, the place moves to a new file
  // in the same folder, and the function returns true.
  bool move_if_changed();
  // Call note_written() after this program has written the file, so is_changed() ignores the change.
  void note_written() { seen_ = stamp_of(path_); }

 private:
  std::string path_;
  std::optional<FileStamp> seen_;
  // Holds the lock of the folder's server; -1 if no server ever used the folder.
  int lock_ = -1;
};

}  // namespace kvant
