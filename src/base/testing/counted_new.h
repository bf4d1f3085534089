// Counts the allocations of a test program by `new`, and can refuse them. This header replaces the operators
// of the whole program, libraries included, so exactly one source file of a program may include the header.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace kvant::testing {

inline std::atomic<long> allocations{0};
// allowed_allocations is the number of allocations that succeed before one is refused.
inline std::atomic<long> allowed_allocations{1L << 60};

}  // namespace kvant::testing

#ifndef __CUDA_ARCH__  // nvcc would compile the operators for the device as well.
void* operator new(std::size_t size) {
  kvant::testing::allocations.fetch_add(1, std::memory_order_relaxed);
  if (kvant::testing::allowed_allocations.fetch_sub(1, std::memory_order_relaxed) <= 0)
    throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// This operator repeats the standard library's version. AddressSanitizer has a version of its own, whose
// memory free() would reject.
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
// Inlining is off, because GCC would otherwise warn that memory from `new` goes to free().
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
#endif
