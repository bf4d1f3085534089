#include "serve/session_disk.h"

#include <new>

namespace kvant {
namespace {

Result<LoadedSession> whole_session(const SessionFolder& folder, const std::string& name) {
  const auto file = folder.read(name);
  if (!file.ok()) return file.error();
  return file->contents();
}

}  // namespace

SessionDisk::SessionDisk(std::shared_ptr<const SessionFolder> folder)
    : folder_(std::move(folder)), thread_([this] { run(); }) {}

SessionDisk::~SessionDisk() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    given_.notify_one();
  }
  thread_.join();
}

void SessionDisk::read(const std::string& name) {
  give({.name = name, .kind = Task::Kind::read});
}

void SessionDisk::write(const std::string& name, SessionContents contents) {
  give({.name = name, .kind = Task::Kind::write, .contents = std::move(contents)});
}

void SessionDisk::remove(const std::string& name) {
  give({.name = name, .kind = Task::Kind::remove});
}

void SessionDisk::give(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  given_.notify_one();
}

std::vector<DiskResult> SessionDisk::take_results() {
  const std::lock_guard lock(mutex_);
  return std::exchange(results_, {});
}

void SessionDisk::wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return !results_.empty(); });
}

DiskResult SessionDisk::perform(const Task& task) const try {
  const bool reads = task.kind == Task::Kind::read;
  DiskResult result{.name = task.name, .was_read = reads, .done = {}, .contents = {}};
  if (!reads) {
    const auto written = folder_->write(task.name, task.contents);
    if (written.ok()) {
      result.file_bytes = *written;
      result.stamp = folder_->stamp(task.name);
    } else {
      result.done = written.error();
    }
  } else if (auto contents = whole_session(*folder_, task.name); contents.ok()) {
    result.contents = std::move(*contents);
  } else {
    result.done = contents.error();
  }
  return result;
} catch (const std::bad_alloc&) {
  return {.name = task.name,
          .was_read = task.kind == Task::Kind::read,
          .done = shortage("out of memory while using the file of the session '{}'", task.name),
          .contents = {}};
}

void SessionDisk::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    given_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (task.kind == Task::Kind::remove) {
      (void)folder_->remove(task.name);
      lock.lock();
      continue;
    }
    DiskResult result = perform(task);
    task = {};  // this frees the memory before anyone learns that the task is done
    lock.lock();
    results_.push_back(std::move(result));
    finished_.notify_one();
    if (!news_) continue;
    lock.unlock();
    news_();
    lock.lock();
  }
}

}  // namespace kvant
