// Finds the user's folder of calibrations and lets the keyboard interrupt a calibration.
#pragma once

#include <atomic>
#include <string>

namespace kvant {

// Returns the folder of calibrations made on first use: $XDG_CACHE_HOME/kvant or ~/.cache/kvant. It is empty
// without either variable; nothing is kept then, because anybody could write to a folder that all users
// share.
std::string calibration_folder();

// While an object lives, the first Ctrl-C sets its flag; the second one ends the program.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  const std::atomic<bool>* flag() const;
};

}  // namespace kvant
