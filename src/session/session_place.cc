#include "session/session_place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "session/session_layout.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

// Returns the first of "chat-2.kv", "chat-3.kv", ... that does not exist.
std::string free_name_like(const fs::path& path) {
  std::error_code failure;
  for (int i = 2;; ++i) {
    fs::path other = path;
    other.replace_filename(fmt::format("{}-{}{}", path.stem().string(), i, path.extension().string()));
    if (!fs::exists(other, failure)) return other.string();
  }
}

}  // namespace

Result<SessionPlace> SessionPlace::open(std::string path) {
  SessionPlace place;
  const std::string lock = (fs::path(path).parent_path() / kSessionLock).string();
  place.lock_ = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC);
  if (place.lock_ >= 0 && flock(place.lock_, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return error(
        "the session '{}' is in the folder of a running server: stop the server, or copy the file to another "
        "folder",
        path);
  place.path_ = std::move(path);
  place.note_written();
  return place;
}

SessionPlace& SessionPlace::operator=(SessionPlace&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(seen_, other.seen_);
  std::swap(lock_, other.lock_);
  return *this;
}

SessionPlace::~SessionPlace() {
  if (lock_ >= 0) close(lock_);
}

bool SessionPlace::is_changed() const {
  // Devices and pipes have no stamp, because they keep nothing that could be lost.
  const auto found = stamp_of(path_);
  return found && found != seen_;
}

bool SessionPlace::move_if_changed() {
  if (!is_changed()) return false;
  path_ = free_name_like(path_);
  seen_.reset();
  return true;
}

}  // namespace kvant
