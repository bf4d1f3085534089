// What the program holds of memory that it has allocated.
#pragma once

#include <cstdint>
#include <optional>

namespace kvant {

// Bytes in use, in all threads. Large blocks have pages of their own, which their alignment may double.
struct HeapBytes {
  std::int64_t small_blocks = 0;
  std::int64_t large_blocks = 0;
};

// Nothing: the C library does not count them.
std::optional<HeapBytes> heap_bytes();

// Bounds the free memory that the heap of a program with many threads keeps. By default the GNU C library
// gives each thread an arena, up to eight for each core, and moves larger and larger blocks into the arenas,
// where small blocks between them hold on to their pages. Before other threads are started.
void bound_free_heap();

// Gives free pages of the heap back to the operating system.
void trim_heap();

}  // namespace kvant
