// Measures and bounds the memory that the C library's heap holds for this program. The server's metrics
// report the numbers, and long-running programs bound the free memory of many threads.
#pragma once

#include <cstdint>
#include <optional>

namespace kvant {

// Holds the bytes in use by all threads. Large blocks have pages of their own, and alignment may double their
// size.
struct HeapBytes {
  std::int64_t small_blocks = 0;
  std::int64_t large_blocks = 0;
};

// Returns the bytes in use, or nothing if the C library does not count them.
std::optional<HeapBytes> heap_bytes();

// Bounds the free memory that the heap of a program with many threads keeps. By default the GNU C library
// gives each thread an arena, up to eight arenas for each core. The library also moves larger and larger
// blocks into the arenas, where small blocks between them keep their pages in use. A program calls this
// function before it starts other threads.
void bound_free_heap();

// Gives free pages of the heap back to the operating system.
void trim_heap();

}  // namespace kvant
