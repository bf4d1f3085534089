// Saves an unfinished capture to disk, so an interrupted calibration can resume. Reading the samples takes
// most of the time on a CPU.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "calibrate/capture.h"

namespace kvant {

// Writes the capture. `identity` is a hash of everything that the capture depends on. The first samples_done
// sequences are complete.
Status write_capture(Capture& capture, std::uint64_t identity, int samples_done, const std::string& path);

// Fills `capture` from a file and returns its samples_done. Without a file, returns 0. Returns the errors of
// open_state(), and an error if the file's capture has a different size. After an error, the capture is
// unchanged.
Result<int> read_capture(const std::string& path, std::uint64_t identity, Capture& capture);

}  // namespace kvant
