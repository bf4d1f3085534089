#include "base/huge_buffer.h"

#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvant {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

HugeBuffer::HugeBuffer(std::size_t n) : size_(n) {
  if (n == 0) return;
  if (n < kHugePage) {
    memory_ = {static_cast<std::byte*>(::operator new(n)), Free{false}};
    return;
  }
  memory_ = {static_cast<std::byte*>(::operator new (n, std::align_val_t{kHugePage})), Free{true}};
#if defined(__linux__)
  madvise(memory_.get(), n, MADV_HUGEPAGE);  // the call is only a hint, on which correctness does not depend
#endif
}

void HugeBuffer::Free::operator()(std::byte* memory) const {
  if (is_huge) {
    ::operator delete (memory, std::align_val_t{kHugePage});
  } else {
    ::operator delete(memory);
  }
}

}  // namespace kvant
