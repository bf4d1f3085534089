// An unfinished capture on disk, to go on with after an interruption.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "calibrate/capture.h"

namespace kvant {

// identity: hash of all that the capture depends on; samples_done: the first of the sequences.
Status write_capture(Capture& capture, std::uint64_t identity, int samples_done, const std::string& path);

// Fills `capture` from such a file and returns its samples_done; 0 where there is none. Errors: see
// open_state(); another size. The capture is then as it was.
Result<int> read_capture(const std::string& path, std::uint64_t identity, Capture& capture);

}  // namespace kvant
