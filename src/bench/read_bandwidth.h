// Measures this machine's memory read bandwidth, which bounds the speed of any attention over a cache. All
// threads read a large buffer and add up its words.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace kvant {

// Returns the bytes per second that n_threads read together in the best of several passes. Each thread reads
// a separate part of a buffer of `bytes`. The buffer should be much larger than the processor's caches.
// Returns an error if there is not enough memory.
Result<double> measure_read_bandwidth(std::size_t bytes, int n_threads);

}  // namespace kvant
