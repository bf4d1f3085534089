// SessionDisk: the thread that reads and writes the sessions' files, so that no answer waits for a disk. What
// it is given is done in that order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/session_folder.h"

namespace kvant {

// A file that was read or written.
struct DiskResult {
  std::string name;
  bool was_read = false;  // otherwise written
  Status done;
  LoadedSession contents;       // of what was read
  std::int64_t file_bytes = 0;  // of what was written
};

class SessionDisk {
 public:
  explicit SessionDisk(std::shared_ptr<const SessionFolder> folder);
  ~SessionDisk();  // after all that it was given
  SessionDisk(const SessionDisk&) = delete;
  SessionDisk& operator=(const SessionDisk&) = delete;

  // Called by the thread of the disk whenever a result is there. Before anything is read or written.
  void tell(std::function<void()> news) { news_ = std::move(news); }

  void read(const std::string& name);
  void write(const std::string& name, SessionContents contents);
  void remove(const std::string& name);  // without a result
  // What was read and written since the last call.
  std::vector<DiskResult> take_results();
  // Waits for a result that take_results() has not given. Requires that one is to come.
  void wait();

 private:
  struct Task {
    enum class Kind { read, write, remove };
    std::string name;
    Kind kind = Kind::read;
    SessionContents contents = {};  // to be written
  };
  void run();
  void give(Task task);
  DiskResult perform(const Task& task) const;

  std::shared_ptr<const SessionFolder> folder_;
  std::function<void()> news_;
  std::mutex mutex_;
  std::condition_variable given_, finished_;
  std::deque<Task> tasks_;
  std::vector<DiskResult> results_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace kvant
