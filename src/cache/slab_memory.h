// SlabMemory: memory for slabs of pages, from chunks that the operating system may back with huge pages:
// attention reads pages that lie scattered, and each would else miss the processor's table of small pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant {

inline constexpr std::size_t kSlabBytes = std::size_t{128} << 10;

// Not thread-safe.
class SlabMemory {
 public:
  SlabMemory() = default;
  ~SlabMemory();
  SlabMemory(const SlabMemory&) = delete;
  SlabMemory& operator=(const SlabMemory&) = delete;

  // kSlabBytes with undefined contents, aligned to them; null when memory is exhausted.
  std::byte* take();
  void give_back(std::byte* slab);

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{2} << 20;  // a huge page
  struct Chunk {
    std::byte* memory = nullptr;
    std::uint32_t used = 0;  // a bit for each slab
  };
  std::vector<Chunk> chunks_;
};

}  // namespace kvant
