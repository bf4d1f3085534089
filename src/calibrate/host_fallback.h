// Moves work from a device to the CPU when the device runs out of memory. A calibration then takes longer,
// but does not fail.
#pragma once

#include <fmt/format.h>

#include "base/result.h"
#include "base/warn.h"
#include "calibrate/read_samples.h"

namespace kvant {

// Runs work(). If the reader's device runs out of memory during work(), the function prints a warning, sets
// the reader to `host`, and runs work() again. Work that keeps its results then resumes.
template <class Work>
auto with_host_fallback(SampleReader& reader, const SampleReader& host, const Work& work)
    -> decltype(work()) {
  auto done = work();
  if (done.ok() || !done.error().is_shortage || reader.device == nullptr) return done;
  warn(fmt::format("the CPU continues the calibration: {}", done.error().message));
  reader = host;
  return work();
}

}  // namespace kvant
