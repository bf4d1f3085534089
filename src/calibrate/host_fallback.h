// What the CPU does where a device runs out of memory.
#pragma once

#include <fmt/format.h>

#include "base/result.h"
#include "base/warn.h"
#include "calibrate/read_samples.h"

namespace kvant {

// Runs work(). Where the reader's device finds no memory in the midst of it, warns, makes `host` the reader
// and runs it once more: work that keeps what it has done goes on from there.
template <class Work>
auto with_host_fallback(SampleReader& reader, const SampleReader& host, const Work& work)
    -> decltype(work()) {
  auto done = work();
  if (done.ok() || !done.error().is_shortage || reader.device == nullptr) return done;
  warn(fmt::format("the CPU goes on with the calibration: {}", done.error().message));
  reader = host;
  return work();
}

}  // namespace kvant
