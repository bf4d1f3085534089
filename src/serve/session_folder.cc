#include "serve/session_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/json_file.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestName = 64;
constexpr std::string_view kEnding = ".kvsession";

void remove_unfinished(const std::string& path) {
  std::error_code failure;
  std::vector<fs::path> unfinished;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end; entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(kTemporaryEnding) && name.find(kEnding) != std::string::npos)
      unfinished.push_back(entry->path());
  }
  for (const fs::path& file : unfinished) fs::remove(file, failure);
}

}  // namespace

bool is_session_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Result<std::unique_ptr<SessionFolder>> SessionFolder::open(const std::string& path, SessionIdentity identity,
                                                           FileCoding coding) {
  std::error_code failure;
  fs::create_directories(path, failure);
  if (failure) return error("cannot create the folder '{}' for sessions: {}", path, failure.message());
  (void)sync_folder_of(fs::absolute(path).lexically_normal().string());
  const std::string lock_path = (fs::path(path) / kSessionLock).string();
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0)
    return error("cannot write into the folder '{}' for sessions: {}", path, std::strerror(errno));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return error(
        "the sessions in '{}' are used by another server or by kvant run: choose another folder, or end that "
        "program",
        path);
  }
  remove_unfinished(path);
  return std::unique_ptr<SessionFolder>(
      new SessionFolder(path, std::move(identity), std::move(coding), lock));
}

SessionFolder::~SessionFolder() {
  close(lock_);
}

std::string SessionFolder::file_of(const std::string& name) const {
  KVANT_CHECK(is_session_name(name), "a session's name that may be a path");
  return (fs::path(path_) / (name + std::string(kEnding))).string();
}

std::vector<std::string> SessionFolder::names() const {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator entry(path_, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string file = entry->path().filename().string();
    const std::string name = file.substr(0, file.size() - std::min(file.size(), kEnding.size()));
    if (file.ends_with(kEnding) && is_session_name(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool SessionFolder::holds(const std::string& name) const {
  std::error_code failure;
  return fs::is_regular_file(file_of(name), failure);
}

std::int64_t SessionFolder::last_write(const std::string& name) const {
  struct stat info {};
  return stat(file_of(name).c_str(), &info) == 0 ? info.st_mtime : 0;
}

Result<SessionFile> SessionFolder::read(const std::string& name) const {
  return SessionFile::open(file_of(name), identity_, coding_.coder);
}

Result<std::int64_t> SessionFolder::write(const std::string& name, const SessionContents& contents) const {
  return write_session(file_of(name), identity_, contents, coding_.compact ? coding_.coder.get() : nullptr);
}

std::int64_t SessionFolder::file_bytes(const SessionContents& contents) const {
  const SessionLayout layout =
      session_layout(contents.tokens.size(), contents.sequence.size(), contents.text.size());
  return static_cast<std::int64_t>(session_header(identity_, layout).size() + layout.bytes());
}

Status SessionFolder::remove(const std::string& name) const {
  std::error_code failure;
  fs::remove(file_of(name), failure);
  if (!failure) failure.assign(sync_folder_of(file_of(name)), std::generic_category());
  if (failure) return error("cannot delete the session '{}': {}", name, failure.message());
  return {};
}

}  // namespace kvant
