// What benchmarks put into a cache instead of a prompt: noise, appended and sealed through a cache's ordinary
// steps.
#pragma once

#include <cstdint>

#include "cache/cache.h"

namespace kvant {

// Writes pages instead of attention.
class SyntheticPages {
 public:
  virtual ~SyntheticPages() = default;
  // Writes those of an open step of one slice that decodes, and seals what is due. An error: memory is short,
  // or the device has failed.
  virtual Status write(Step& step) = 0;
};

// Makes an empty sequence n_tokens long, with the same plausible random page throughout. Tokens get scores of
// which every page has the same share above any threshold, so recipes protect and evict as many as they say.
// An error (memory is short, the device has failed) leaves the sequence with part of its tokens.
Status fill_synthetic(Cache& cache, SequenceId sequence, int n_tokens, std::uint64_t seed);

}  // namespace kvant
