// CacheBytes: the bytes that sequences hold, by what they are for.
#pragma once

#include <cstdint>

namespace kvant {

// Bytes in use. The figures of a table: bits = 8 * bytes / elements.
struct CacheBytes {
  std::int64_t sealed = 0;  // pages in their formats
  // Pages of protected tokens (whole) but the sink's, masks, lists, scores, corrections.
  std::int64_t protected_tokens = 0;
  std::int64_t sink = 0;             // pages of the sink
  std::int64_t tail = 0;             // unsealed tokens, in steps of kTailStep, and the open page's observers
  std::int64_t sealed_elements = 0;  // K and V values of sealed tokens, protected and evicted ones included
  std::int64_t elements = 0;         // K and V values of all tokens but those beyond a sliding window
  std::int64_t recurrent = 0;        // states of layers without attention; all() leaves them out
  std::int64_t all() const { return sealed + protected_tokens + sink + tail; }
  std::int64_t with_states() const { return all() + recurrent; }
  CacheBytes& operator+=(const CacheBytes& more) {
    sealed += more.sealed;
    protected_tokens += more.protected_tokens;
    sink += more.sink;
    tail += more.tail;
    sealed_elements += more.sealed_elements;
    elements += more.elements;
    recurrent += more.recurrent;
    return *this;
  }
  // Bits for each element at this length: sealed pages with all that belongs to them; everything. Tables give
  // the mean over the positions of a page (eval/cache_size.h).
  double bits_sealed() const {
    return sealed_elements == 0
               ? 0
               : 8.0 * static_cast<double>(sealed + protected_tokens) / static_cast<double>(sealed_elements);
  }
  double bits_all() const {
    return elements == 0 ? 0 : 8.0 * static_cast<double>(all()) / static_cast<double>(elements);
  }
};

}  // namespace kvant
