// Fills a cache with noise instead of a prompt, for benchmarks. The sequence is made as an image is read, so
// the cache may lie in any memory.
#pragma once

#include <cstdint>

#include "cache/cache.h"

namespace kvant {

// Makes an empty sequence n_tokens long, with copies of one plausible random page. All pages have nearly
// equal shares of scores above any threshold, so recipes protect and evict the shares that they state. An
// error (short memory or a failed device) leaves the sequence empty.
Status fill_synthetic(Cache& cache, SequenceId sequence, int n_tokens, std::uint64_t seed);

}  // namespace kvant
