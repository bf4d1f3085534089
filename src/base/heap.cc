#include "base/heap.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace kvant {

std::optional<HeapBytes> heap_bytes() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const auto info = mallinfo2();
  return HeapBytes{static_cast<std::int64_t>(info.uordblks), static_cast<std::int64_t>(info.hblkhd)};
#else
  return std::nullopt;
#endif
}

void bound_free_heap() {
#if defined(__GLIBC__)
  // A block of at least kOwnPages bytes has pages of its own, which return to the system when the block is
  // freed.
  constexpr int kOwnPages = 1 << 20, kArenas = 2;
  mallopt(M_ARENA_MAX, kArenas);
  mallopt(M_MMAP_THRESHOLD, kOwnPages);
  mallopt(M_TRIM_THRESHOLD, 2 * kOwnPages);
#endif
}

void trim_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace kvant
