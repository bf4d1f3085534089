// Saves an unfinished capture to disk, to be resumed after an interruption.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "calibrate/capture.h"

namespace kvant {

// identity: hash of everything that the capture depends on. samples_done: number of leading sequences that
// are complete.
Status write_capture(Capture& capture, std::uint64_t identity, int samples_done, const std::string& path);

// Fills `capture` from such a file and returns its samples_done, or 0 without a file. Errors: see
// open_state(); another size. On an error the capture is unchanged.
Result<int> read_capture(const std::string& path, std::uint64_t identity, Capture& capture);

}  // namespace kvant
