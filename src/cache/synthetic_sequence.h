// Fills a cache with noise instead of a prompt, for benchmarks. The noise is appended and sealed in ordinary
// steps of the cache.
#pragma once

#include <cstdint>

#include "cache/cache.h"

namespace kvant {

// Writes pages instead of attention.
class SyntheticPages {
 public:
  virtual ~SyntheticPages() = default;
  // Writes the pages of an open decode step of one slice, and seals what is due. An error says that memory is
  // short or that the device has failed.
  virtual Status write(Step& step) = 0;
};

// Makes an empty sequence n_tokens long, with copies of one plausible random page. All pages have nearly
// equal shares of scores above any threshold, so recipes protect and evict the shares that they state. An
// error (short memory or a failed device) leaves the sequence with part of its tokens.
Status fill_synthetic(Cache& cache, SequenceId sequence, int n_tokens, std::uint64_t seed);

}  // namespace kvant
