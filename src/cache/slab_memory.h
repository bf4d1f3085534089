// SlabMemory provides memory for slabs of pages, from chunks that the operating system may back with huge
// pages. Attention reads scattered pages, and with small memory pages each read would miss the processor's
// TLB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

inline constexpr std::size_t kSlabBytes = std::size_t{128} << 10;

// SlabMemory is not thread-safe.
class SlabMemory {
 public:
  SlabMemory() = default;
  ~SlabMemory();
  SlabMemory(const SlabMemory&) = delete;
  SlabMemory& operator=(const SlabMemory&) = delete;

  // Returns kSlabBytes bytes with undefined contents at a multiple of kSlabBytes, or null if memory is
  // exhausted.
  std::byte* take();
  void give_back(std::byte* slab);

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{2} << 20;  // the size of a huge page
  struct Chunk {
    std::byte* memory = nullptr;
    std::uint32_t used = 0;  // one bit for each slab
  };
  std::vector<Chunk> chunks_;
};

}  // namespace kvant
