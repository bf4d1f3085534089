// Finds the user's folder of calibrations and lets Ctrl-C interrupt a calibration.
#pragma once

#include <atomic>
#include <string>

namespace kvant {

// Returns the folder of calibrations that are made on first use: $XDG_CACHE_HOME/kvant or ~/.cache/kvant.
// If neither XDG_CACHE_HOME nor HOME is set, the result is empty and calibrations are not kept. In a folder
// that all users share, anybody could replace calibrations.
std::string calibration_folder();

// While an object exists, the first SIGINT or SIGTERM sets its flag and prints that the work ends soon. The
// second signal ends the program.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  const std::atomic<bool>* flag() const;
};

}  // namespace kvant
