#include "task/calibration_files.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>

namespace kvant {
namespace {

// The flag is global because a signal handler can reach nothing else.
std::atomic<bool> calibration_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr int kInterrupting[] = {SIGINT, SIGTERM};

extern "C" void note_interruption(int) {
  calibration_interrupted = true;
  for (const int signal : kInterrupting) std::signal(signal, SIG_DFL);
}

std::filesystem::path cache_home() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') return cache;
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
