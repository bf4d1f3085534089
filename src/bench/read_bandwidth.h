// Memory read bandwidth of this machine, which bounds the speed of any attention over a cache.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace kvant {

// Returns the bytes per second that n_threads read together, each its own part of a buffer of `bytes`; the
// best of several passes. The buffer should be much larger than the processor's caches. Returns an error if
// there is no memory.
Result<double> measure_read_bandwidth(std::size_t bytes, int n_threads);

}  // namespace kvant
