// Lays out pages of different sizes in one entry of a page table, for tests of mixed formats. The order of
// the pages is unusual, so kernels pass only if they use the given offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant::cuda {

// Places the pages of all heads and sides in an entry without gaps. Values come first, from the last head to
// the first, and then keys in that order.
struct PackedEntry {
  // Offsets have shape [heads][2], like kvant_decode_layer::sealed_offsets.
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;

  // page_bytes has shape [heads][2].
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
