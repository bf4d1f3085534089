#include "task/calibration_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "base/warn.h"

namespace kvant {
namespace {

// The flag is global because a signal handler can reach nothing else.
std::atomic<bool> calibration_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr int kInterrupting[] = {SIGINT, SIGTERM};
constexpr std::string_view kEnding =
    "\nkvant: ending after the sample, head or context in hand; a second signal ends at once\n";

extern "C" void note_interruption(int) {
  calibration_interrupted = true;
  // A handler may only call async-signal-safe functions such as write(). If write() fails, only the message
  // is lost.
  const int code = errno;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kEnding.data(), kEnding.size());
  errno = code;
  for (const int signal : kInterrupting) std::signal(signal, SIG_DFL);
}

std::filesystem::path cache_home() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    if (*cache == '/') return cache;
    // The XDG Base Directory Specification asks programs to ignore relative paths.
    static std::once_flag once;
    std::call_once(once, [&] {
      warn(fmt::format("XDG_CACHE_HOME is '{}', which is ignored because it is no absolute path", cache));
    });
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache";
  return {};
}

}  // namespace

std::string calibration_folder() {
  const std::filesystem::path home = cache_home();
  return home.empty() ? "" : (home / "kvant").string();
}

Interruption::Interruption() {
  calibration_interrupted = false;
  for (const int signal : kInterrupting) std::signal(signal, note_interruption);
}
Interruption::~Interruption() {
  for (const int signal : kInterrupting) std::signal(signal, SIG_DFL);
}
const std::atomic<bool>* Interruption::flag() const {
  return &calibration_interrupted;
}

}  // namespace kvant
