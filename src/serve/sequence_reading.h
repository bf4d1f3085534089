// SequenceReading moves sequences from files into the cache, one at a time. The disk's thread reads a file.
// Then its rows go into the cache in pieces, between the steps of completions.
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

// This many bytes move between the cache and a file in one step. They bound the delay of other completions to
// some milliseconds.
inline constexpr std::size_t kPieceBytes = 4 << 20;

class SequenceReading {
 public:
  struct File {
    std::string name;
    LoadedSession contents;
    std::unique_ptr<SequenceImport> import;  // null: the disk's thread has it
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

  // Returns the file that is being read, which must exist.
  File& current() { return *current_; }
  std::string current_name() const { return current_ ? current_->name : ""; }
  // Stops reading it. Rows that are already in the cache are freed, unless they were taken.
  void drop() { current_.reset(); }

  // Takes what the disk's thread has read of the current file.
  void give(LoadedSession contents);
  // Starts the next file, or moves one piece of the current one into the cache. It returns false if there is
  // nothing to do, or if the disk's thread is busy with the file. `finish` is called when all rows are there,
  // or cannot be, and must drop() the file. On an error, memory is short, and the next call starts the file's
  // rows anew.
  Result<bool> advance(const std::function<void(const Status&)>& finish);

 private:
  void begin_import();

  Cache& cache_;
  SessionDisk& disk_;
  std::deque<std::string> wanted_;
  std::optional<File> current_;
};

}  // namespace kvant
