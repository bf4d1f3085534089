// Where calibrations come from and go to: the user's cache folder, and interruption by the keyboard.
#pragma once

#include <atomic>
#include <string>

namespace kvant {

// The folder of calibrations made on first use: $XDG_CACHE_HOME/kvant, or ~/.cache/kvant. Empty where there
// is neither: nothing is kept then, as a folder that all users share could be anybody's.
std::string calibration_folder();

// While one lives, Ctrl-C sets its flag instead of ending the program; pressing it again ends the program.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;
  const std::atomic<bool>* flag() const;
};

}  // namespace kvant
