// Lays out pages of different sizes in one entry of a page table, for tests of mixed formats. The order of
// the pages is unusual, so a test passes only if the kernels use the given offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant::cuda {

// Places the pages of all heads and sides in an entry without gaps. The values of all heads come first, from
// the last head to the first. The keys of all heads follow in the same order.
struct PackedEntry {
  // Holds the offsets as [heads][2], like kvant_decode_layer::sealed_offsets.
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;

  // page_bytes is [heads][2].
  explicit PackedEntry(const std::vector<std::size_t>& page_bytes) : offsets(page_bytes.size()) {
    for (const std::size_t side : {1, 0}) {
      for (std::size_t head = page_bytes.size() / 2; head-- > 0;) {
        offsets[2 * head + side] = bytes;
        bytes += static_cast<std::int64_t>(page_bytes[2 * head + side]);
      }
    }
  }
};

}  // namespace kvant::cuda
