// How fast this machine reads memory: the limit of any attention over a cache.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace kvant {

// Bytes a second that n_threads read together, each its own part of a buffer of `bytes`, which should be
// much larger than the processor's caches: the best of several passes. An error when there is no memory.
Result<double> measure_read_bandwidth(std::size_t bytes, int n_threads);

}  // namespace kvant
