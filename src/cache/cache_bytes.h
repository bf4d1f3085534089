// CacheBytes counts the bytes that sequences hold, by purpose. Tables and reports take their bits per value
// from these counts.
#pragma once

#include <cstdint>

namespace kvant {

// Holds bytes in use. The bits of a table are 8 * bytes / elements.
struct CacheBytes {
  std::int64_t sealed = 0;  // pages in their formats
  // Whole pages of protected tokens except the sink's pages, and masks, lists, scores and corrections.
  std::int64_t protected_tokens = 0;
  std::int64_t sink = 0;             // pages of the sink
  std::int64_t tail = 0;             // pages of the tail, and the open page's observers
  std::int64_t sealed_elements = 0;  // K and V values of sealed tokens, including protected and evicted ones
  std::int64_t elements = 0;         // K and V values of all tokens except those of freed pages
  std::int64_t recurrent = 0;        // States of layers without attention, which all() leaves out.
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
  // Return the bits per element at this length, for sealed pages with everything that belongs to them, and
  // for all bytes. Tables give the mean over the positions of a page (eval/cache_size.h).
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
