// SessionDisk is the thread that reads and writes session files, so completions never wait for a disk. The
// thread does its tasks in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serve/session_folder.h"

namespace kvant {

// DiskResult says that a file was read or written.
struct DiskResult {
  std::string name;
  bool was_read = false;  // true after a read, false after a write
  Status done;
  LoadedSession contents;               // only after a read
  std::int64_t file_bytes = 0;          // only after a write
  std::optional<FileStamp> stamp = {};  // the new file; only after a write
};

class SessionDisk {
 public:
  explicit SessionDisk(std::shared_ptr<const SessionFolder> folder);
  ~SessionDisk();  // finishes all tasks
  SessionDisk(const SessionDisk&) = delete;
  SessionDisk& operator=(const SessionDisk&) = delete;

  // Sets the function that the disk's thread calls after each result. Call tell() before the first task.
  void tell(std::function<void()> news) { news_ = std::move(news); }

  void read(const std::string& name);
  void write(const std::string& name, SessionContents contents);
  void remove(const std::string& name);  // removing gives no result
  // Returns the results since the last call.
  std::vector<DiskResult> take_results();
  // Waits until take_results() has something to return. At least one task must be pending.
  void wait();

 private:
  struct Task {
    enum class Kind { read, write, remove };
    std::string name;
    Kind kind = Kind::read;
    SessionContents contents = {};  // the contents to be written; empty for other tasks
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
