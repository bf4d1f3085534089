// SequenceReading moves sequences from session files into the cache, one at a time. First the disk's thread
// reads a file. Then advance() copies the file's rows into the cache in pieces, between steps.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cache/sequence_image.h"
#include "serve/session_disk.h"

namespace kvant {

// One call of advance() moves this many bytes between the cache and a file, so a call delays completions only
// by some milliseconds.
inline constexpr std::size_t kPieceBytes = 4 << 20;

class SequenceReading {
 public:
  struct File {
    std::string name;
    LoadedSession contents;
    std::unique_ptr<SequenceImport> import;  // null while the disk's thread reads the file
  };

  SequenceReading(Cache& cache, SessionDisk& disk) : cache_(cache), disk_(disk) {}

  void want(const std::string& name) { wanted_.push_back(name); }
  bool is_coming(const std::string& name) const {
    return is_current(name) || std::ranges::find(wanted_, name) != wanted_.end();
  }
  bool is_busy() const { return current_ || !wanted_.empty(); }
  bool waits_for_disk() const { return current_ && !current_->import; }
  bool is_current(const std::string& name) const { return current_ && current_->name == name; }
  bool is_importing() const { return current_ && current_->import; }

  // Returns the file that is being read. There must be one.
  File& current() { return *current_; }
  std::string current_name() const { return current_ ? current_->name : ""; }
  // Gives up the current file. Rows that are already in the cache are freed, unless the caller has taken the
  // sequence.
  void drop() { current_.reset(); }

  // Takes the contents of the current file from the disk's thread.
  void give(LoadedSession contents);
  // Starts the next file, or moves one piece of the current file into the cache. Returns false if there is
  // nothing to do, or if the disk's thread still reads. Once all rows are in the cache, or if that is
  // impossible, advance() calls `finish`, which must call drop(). An error means that memory is short. The
  // next call then starts again with the file's first rows.
  Result<bool> advance(const std::function<void(const Status&)>& finish);

 private:
  void begin_import();

  Cache& cache_;
  SessionDisk& disk_;
  std::deque<std::string> wanted_;
  std::optional<File> current_;
};

}  // namespace kvant
