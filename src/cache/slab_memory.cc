#include "cache/slab_memory.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/check.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvant {

SlabMemory::~SlabMemory() {
  KVANT_CHECK(chunks_.empty(), "slabs outlive their memory");
}

std::byte* SlabMemory::take() {
  constexpr std::uint32_t kFull = (std::uint32_t{1} << (kChunkBytes / kSlabBytes)) - 1;
  auto chunk = std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& c) { return c.used != kFull; });
  if (chunk == chunks_.end()) {
    chunks_.reserve(chunks_.size() + 1);
    void* memory = ::operator new (kChunkBytes, std::align_val_t{kChunkBytes}, std::nothrow);
    if (memory == nullptr) return nullptr;
#if defined(__linux__)
    madvise(memory, kChunkBytes, MADV_HUGEPAGE);  // Nothing depends on this request.
#endif
    chunks_.push_back({static_cast<std::byte*>(memory), 0});
    chunk = std::prev(chunks_.end());
  }
  const int slab = std::countr_one(chunk->used);
  chunk->used |= std::uint32_t{1} << slab;
  return chunk->memory + slab * kSlabBytes;
}

void SlabMemory::give_back(std::byte* slab) {
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(), [slab](const Chunk& c) {
    return slab >= c.memory && slab < c.memory + kChunkBytes;
  });
  KVANT_CHECK(chunk != chunks_.end(), "a slab from elsewhere");
  chunk->used &= ~(std::uint32_t{1} << ((slab - chunk->memory) / kSlabBytes));
  if (chunk->used != 0) return;
  ::operator delete (chunk->memory, std::align_val_t{kChunkBytes});
  chunks_.erase(chunk);
}

}  // namespace kvant
