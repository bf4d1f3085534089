// SequenceReading: sequences on their way from files into the cache, one at a time: the disk's thread reads a
// file, then its rows go into the cache in pieces, with steps of answers between them.
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

// Bytes that go between the cache and a file in one step, so that others' tokens wait for some milliseconds
// at most.
inline constexpr std::size_t kPieceBytes = 4 << 20;

class SequenceReading {
 public:
  struct File {
    std::string name;
    LoadedSession contents;
    std::unique_ptr<SequenceImport> import;  // null: the thread of the disk has it
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

  // Of the file that is being read; requires that there is one.
  File& current() { return *current_; }
  std::string current_name() const { return current_ ? current_->name : ""; }
  // Ends its reading; rows that are in the cache already leave it, unless they were taken.
  void drop() { current_.reset(); }

  // What the disk's thread has read of the current file.
  void give(LoadedSession contents);
  // Begins with the next file, or takes one piece of the current one's rows into the cache; false: there is
  // nothing to do, or the disk's thread is at it. Once all rows are there, or can't be, `finish` is called,
  // and has to drop() the file. Error: a shortage of memory; the file's rows begin anew with the next call.
  Result<bool> advance(const std::function<void(const Status&)>& finish);

 private:
  void begin_import();

  Cache& cache_;
  SessionDisk& disk_;
  std::deque<std::string> wanted_;
  std::optional<File> current_;
};

}  // namespace kvant
